"""Find the shape and dtype of the infos that the user named, before rollouts are laid out."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from parenv.envs.agents import acts_in_turns
from parenv.envs.infos import Found, InfoRows, row_of
from parenv.envs.values import action_splitter
from parenv.errors import ConfigurationError
from parenv.memory.layout import Info, RolloutSpec
from parenv.memory.spaces import flatten, leaves
from parenv.policy.policy import as_policy
from parenv.worker.actor import Actor
from parenv.worker.job import Job
from parenv.worker.single_agent_collector import ScratchEnvs, private_writer

MAX_STEPS = 1000
"""Maximum length in env steps of the episode that is played to find an info that no reset returns."""
Seen = Sequence[tuple[str, Any, Found]]
"""Agents with an observation and its info each, in temporal order."""


def infos_in(names: Mapping[str, Any], taken: Collection[str], of_each: Sequence[Found]) -> tuple[Info, ...]:
    """Describe the named infos that have a default or are in the given infos.

    Args:
        names: Defaults by name of an info. ``None``: no default.
        taken: Names of the infos that the policy takes. Other names may be among them.
        of_each: Infos of sub-environments.

    Raises:
        ConfigurationError: A named info is not numeric.
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


def infos_in_episode(
    scratch_envs: ScratchEnvs, actor: Actor, spec: RolloutSpec, missing: Sequence[str]
) -> tuple[Info, ...]:
    """Describe infos that only steps return. An episode is played for this in scratch environments, which are closed.

    Raises:
        ConfigurationError: The episode, or its first ``MAX_STEPS`` env steps, did not return one of them.
    """
    spec = replace(spec, rollout_length=1)
    with contextlib.closing(scratch_envs):
        collector, _ = scratch_envs.collector(actor, spec, 0, 0)
        writer = private_writer(spec, collector.stepper.num_envs)
        writer.infos = all_infos = _KeptInfos(spec.infos, writer.arrays)
        for _ in range(MAX_STEPS):
            collector.collect(writer)
            found = infos_in(dict.fromkeys(missing), (), all_infos.kept)
            if len(found) == len(missing):
                return found
            if writer.num_ends:
                break
    raise _never_returned([name for name in missing if name not in {info.name for info in found}], all_infos.kept)


def infos_of_groups(
    job: Job, groups: Sequence[Sequence[str]], seen: Seen, make: Callable[[], Any]
) -> tuple[list[tuple[Info, ...]], Seen]:
    """Describe the named infos of each group of agents.

    Args:
        job: Job with the names, and with the policies, which may take some of the infos.
        groups: Agents of each group.
        seen: Observations and infos after resets.
        make: Function that makes an environment. If resets do not return all infos for all groups, an episode of
            sampled actions is played in it.

    Returns:
        The infos of each group, and all observations and infos that were seen.

    Raises:
        ConfigurationError: No agent gets one of the infos, or an info is not numeric.
    """
    names = job.infos
    taken = frozenset[str]().union(*(as_policy(policy).infos_taken() for policy in job.policies.values()))

    def found_in(seen: Seen) -> list[tuple[Info, ...]]:
        return [infos_in(names, taken, [info for agent, _, info in seen if agent in mine]) for mine in groups]

    infos = found_in(seen)
    if all(len(found) == len(names) for found in infos):
        return infos, seen
    with contextlib.closing(make()) as env:
        seen = [*seen, *_sampled_episode(env)]
    infos = found_in(seen)
    if absent := [name for name in names if name not in {info.name for found in infos for info in found}]:
        raise _never_returned(absent, [info for *_, info in seen])
    return infos, seen


def not_in_resets(needed: Sequence[str], of_each: Sequence[Found]) -> ConfigurationError:
    """Make the error for infos that the policy cannot act without, but that resets did not return."""
    returned = sorted({str(name) for info in of_each for name in info})
    return ConfigurationError(
        f"reset() must return the infos {needed}, which the policy takes without a default, got {returned}. "
        "Correct the names, have the environment return them, or give the parameters defaults"
    )


class _KeptInfos(InfoRows):
    """Info rows that also keep every info that is written, in ``kept``."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept: list[Found] = []

    def __bool__(self) -> bool:
        return True

    def write(self, step: int, column: int, info: Found) -> None:
        """Keep the info of a step, and write the infos that the policy takes."""
        self.kept.append(info)
        super().write(step, column, info)

    def write_batch(self, step: int, infos: Found, columns: Any, own: bool = True, seen: bool = True) -> None:
        """Keep the infos of a step of a ``VectorEnv``, one by one."""
        self.kept += [row_of(infos, column) for column in columns.tolist()]
        super().write_batch(step, infos, columns, own, seen)


def _never_returned(absent: Sequence[str], infos: Sequence[Found]) -> ConfigurationError:
    returned = sorted({str(name) for info in infos for name in info})
    return ConfigurationError(
        f"infos names {', '.join(map(repr, absent))}, but neither resets nor {len(infos)} steps of an episode "
        f"returned that: what they returned is {returned}. Correct the name, or, if only some steps return the info, "
        f"give it a default: infos={{{absent[0]!r}: False}} or another number or array"
    )


def _sampled_episode(env: Any) -> Iterator[tuple[str, Any, Found]]:
    """Play one episode, or ``MAX_STEPS`` steps of it, with sampled actions."""
    action_spaces = {agent: copy.deepcopy(env.action_space(agent)) for agent in env.possible_agents}
    for number, space in enumerate(action_spaces.values()):
        space.seed(number)
    steps = _aec_steps(env, action_spaces) if acts_in_turns(env) else _parallel_steps(env, action_spaces)
    for _, seen in zip(range(MAX_STEPS), steps, strict=False):
        yield from copy.deepcopy(seen)


def _parallel_steps(env: Any, action_spaces: dict[str, Space[Any]]) -> Iterator[Seen]:
    observations, infos = env.reset(seed=0)
    while env.agents:
        actions = {
            agent: _sampled(action_spaces[agent], observations[agent], infos.get(agent, {})) for agent in env.agents
        }
        observations, *_, infos = env.step(actions)
        yield [(agent, observation, infos.get(agent, {})) for agent, observation in observations.items()]


def _aec_steps(env: Any, action_spaces: dict[str, Space[Any]]) -> Iterator[Seen]:
    env.reset(seed=0)
    while env.agents:
        agent = env.agent_selection
        observation, _, terminated, truncated, info = env.last()
        yield [(agent, observation, info)]
        env.step(None if terminated or truncated else _sampled(action_spaces[agent], observation, info))


def _sampled(space: Space[Any], observation: Any, info: Found) -> Any:
    """Sample an action. PettingZoo environments may return a mask of the legal actions."""
    mask = info.get("action_mask", observation.get("action_mask") if isinstance(observation, dict) else None)
    masked = mask is not None and isinstance(space, spaces.Discrete)
    action = space.sample(np.asarray(mask, np.int8)) if masked else space.sample()
    parts = leaves(space)
    rows = [np.asarray(value, leaf.dtype)[None] for leaf, value in zip(parts, flatten(parts, action), strict=True)]
    return action_splitter(parts)(rows)[0]
