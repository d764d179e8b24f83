"""Finding out what the infos are like that the user named: from resets, or else by playing an episode elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.envs.infos import Found, InfoRows, row_of
from parenv.errors import ConfigurationError
from parenv.memory.layout import Info, RolloutSpec
from parenv.worker.acting import Actor
from parenv.worker.collecting import private_writer
from parenv.worker.scratch_envs import ScratchEnvs

MAX_STEPS = 1000
"""Steps of the episode that is played to see an info that no reset returns."""


class HeardInfos(InfoRows):
    """Keeps every info that is written.

    Attributes:
        heard: those so far.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.heard: list[Found] = []

    def __bool__(self) -> bool:
        return True

    def write(self, step: int, column: int, info: Found) -> None:
        """Keep what a step returned, and write what the policy takes."""
        self.heard.append(info)
        super().write(step, column, info)

    def write_batch(self, step: int, infos: Found, columns: Any, own: bool = True, seen: bool = True) -> None:
        """Keep what a ``VectorEnv`` returned, one by one."""
        self.heard += [row_of(infos, column) for column in columns.tolist()]
        super().write_batch(step, infos, columns, own, seen)


def infos_in(names: Mapping[str, Any], taken: Collection[str], of_each: Sequence[Found]) -> tuple[Info, ...]:
    """What those of the named infos are like that have a default or are here.

    Args:
        names: of infos, with their defaults or ``None``.
        taken: names of those that the policy takes, and of other things.
        of_each: infos of sub-environments.

    Raises:
        ConfigurationError: one is no array of numbers.
    """
    found = []
    for name, default in names.items():
        value = default
        if value is None:
            value = next((info[name] for info in of_each if info.get(name) is not None), None)
        if value is not None:
            array = np.asarray(value)
            if array.dtype.kind not in "?biuf":
                raise ConfigurationError(
                    f"infos names {name!r}, which is {type(value).__name__}: only numbers, booleans and arrays of "
                    "those can come along in a rollout"
                )
            is_taken = not {name, f"_{name}"}.isdisjoint(taken)
            found.append(Info(name, array.shape, array.dtype.str, is_taken, default))
    return tuple(found)


def played(scratch_envs: ScratchEnvs, actor: Actor, spec: RolloutSpec, missing: Sequence[str]) -> tuple[Info, ...]:
    """What infos are like that only steps return, from an episode of a sub-environment that is made for it.

    Args:
        scratch_envs: that one; closed afterwards.
        actor: has a copy of the policy that is thrown away afterwards.
        spec: what is known so far.
        missing: names.

    Raises:
        ConfigurationError: there is no such info in an episode, or the first part of a long one.
    """
    spec = replace(spec, rollout_length=1)
    with contextlib.closing(scratch_envs):
        collector, _ = scratch_envs.collector(actor, spec, 0, 0)
        writer = private_writer(spec, collector.stepper.num_envs)
        writer.infos = everything = HeardInfos(spec.infos, writer.arrays)
        for _ in range(MAX_STEPS):
            collector.collect(writer)
            found = infos_in(dict.fromkeys(missing), (), everything.heard)
            if len(found) == len(missing):
                return found
            if writer.num_ends:
                break
    raise nowhere([name for name in missing if name not in {info.name for info in found}], everything.heard)


def not_seen(needed: Sequence[str], of_each: Sequence[Found]) -> ConfigurationError:
    """Infos that the policy cannot act without are not among those that resets returned."""
    returned = sorted({str(name) for info in of_each for name in info})
    return ConfigurationError(
        f"reset() must return the infos {needed}, which the policy takes without a default, got {returned}. "
        "Correct the names, have the environment return them, or give the parameters defaults"
    )


def nowhere(absent: Sequence[str], everything: Sequence[Found]) -> ConfigurationError:
    """Of infos with these names there are none among all that were heard."""
    returned = sorted({str(name) for info in everything for name in info})
    return ConfigurationError(
        f"infos names {', '.join(map(repr, absent))}, but neither resets nor {len(everything)} steps of an episode "
        f"returned that: what they returned is {returned}. Correct the name, or, if only some steps return the info, "
        f"give it a default: infos={{{absent[0]!r}: False}} or another number or array"
    )
