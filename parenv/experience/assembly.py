"""From the arrays of a slot to a Rollout: the same for a worker's own columns and for a whole block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from parenv.experience.episodes import NO_EPISODES, EpisodeStatistics
from parenv.experience.rollout import Ends, Rollout
from parenv.memory.layout import PLAIN, RolloutSpec, part_of_slot
from parenv.memory.spaces import Leaf, unflatten

Arrays = Mapping[tuple[str, Any], Any]


_NOWHERE, _NO = np.empty(0, np.int64), np.empty(0, np.bool_)


class Columns(NamedTuple):
    """One worker's part of a slot.

    Args:
        position: its place among the workers of the slot.
        first: its first column.
        stop: the column behind its last.
        objects: lists for the leaves without a fixed size, named as the arrays are: ``[T + 1][B]`` observations,
            ``[T][B]`` actions, ``[K]`` finals.
    """

    position: int
    first: int
    stop: int
    objects: Arrays = MappingProxyType({})


def assemble(
    spec: RolloutSpec,
    arrays: Arrays,
    columns: Sequence[Columns],
    *,
    env_ids: Any,
    worker: int | None,
    policy_version: int,
    policy_lag: int,
    extras: Sequence[str],
) -> Rollout:
    """Build the rollout of adjacent columns of a slot. No array is copied, but for the few bytes of episode ends.

    Args:
        spec: what the slot holds.
        arrays: its arrays.
        columns: those of each worker, in their order.
        env_ids: int64 ``[B]``.
        worker: the worker whose they are, or ``None``.
        policy_version: the version that acted.
        policy_lag: in publishes.
        extras: names of the extras that are written by now.
    """
    first, T = columns[0].first, spec.rollout_length
    part = part_of_slot(T, columns[0].position, first, columns[-1].stop)

    def block(name: str, key: Any = 0) -> Any:
        return arrays[name, key][part[name]]

    def leaf_blocks(name: str, of: Sequence[Leaf]) -> list[Any]:
        return [
            _joined_columns([mine.objects[name, i] for mine in columns]) if leaf.dtype is None else block(name, i)
            for i, leaf in enumerate(of)
        ]

    observations = leaf_blocks("observations", spec.observations)
    shifted = [rows[1:] for rows in observations]
    parts = [_ends_of(spec, arrays, mine, first, shifted, env_ids) for mine in columns]
    return Rollout(
        **{name: arrays[name, 0][part[name]] for name in PLAIN},
        observations=unflatten(spec.observations, [rows[:T] for rows in observations]),
        actions=unflatten(spec.actions, leaf_blocks("actions", spec.actions)),
        last_observations=unflatten(spec.observations, [rows[T] for rows in observations]),
        extras={name: block("extras", name) for name in extras},
        initial_carry=unflatten(spec.carry, leaf_blocks("carry", spec.carry)) if spec.carry else None,
        env_ids=env_ids,
        worker=worker,
        policy_version=policy_version,
        policy_lag=policy_lag,
        episodes=EpisodeStatistics.joined([episodes for _, episodes in parts]),
        ends=[ends for ends, _ in parts],
        shifted_observations=unflatten(spec.observations, shifted),
        **infos_of(spec, block),
    )


def infos_of(spec: RolloutSpec, block: Callable[[str, str], Any]) -> dict[str, Any]:
    """The two fields of a rollout that infos are in; ``block`` gives its part of an array, by field and key."""
    following = {name: block("infos", name) for info in spec.infos for name in info.names}
    acted_on = [name for info in spec.infos if info.acted_on for name in info.names]
    seen = {name: block("seen", name)[: spec.rollout_length] for name in acted_on}
    return {"infos": {**following, **seen}, "next_infos": following}


def _ends_of(
    spec: RolloutSpec, arrays: Arrays, mine: Columns, first: int, shifted: Sequence[Any], env_ids: Any
) -> tuple[Ends, EpisodeStatistics]:
    begin = spec.rollout_length * mine.first
    count = int(arrays["commits", 0][mine.position]["num_ends"])
    if not count:
        none = [[] if leaf.dtype is None else arrays["finals", i][:0] for i, leaf in enumerate(spec.observations)]
        return Ends(_NOWHERE, _NOWHERE, unflatten(spec.observations, none), _NO, _NO, _NO), NO_EPISODES
    records = arrays["ends", 0][begin : begin + count].copy()
    records["column"] -= first
    steps, columns = records["step"].astype(np.int64), records["column"].astype(np.int64)
    if records["resets_next"][0]:  # Then all do: they are of one environment.
        finals = [_picked(rows, steps, columns) for rows in shifted]
    else:
        finals = [
            mine.objects["finals", i] if leaf.dtype is None else arrays["finals", i][begin : begin + count]
            for i, leaf in enumerate(spec.observations)
        ]
    about = (records[name] != 0 for name in ("known", "resets_next", "void"))
    return Ends(steps, columns, unflatten(spec.observations, finals), *about), episodes_of(records, env_ids)


def _picked(rows: Any, steps: Any, columns: Any) -> Any:
    if isinstance(rows, list):
        return [rows[step][column] for step, column in zip(steps.tolist(), columns.tolist(), strict=True)]
    return rows[steps, columns]


def episodes_of(records: Any, env_ids: Any) -> EpisodeStatistics:
    """The episodes among ends, given as :data:`~parenv.memory.layout.END_DTYPE`; those of lives only are none."""
    records = records[records["counts"] != 0]
    return EpisodeStatistics(*own_columns(records), env_ids[records["column"]])


def own_columns(records: Any) -> tuple[Any, Any, Any]:
    """Returns, lengths and seconds of ends, each one behind the other in memory."""
    returns, lengths, seconds = (np.ascontiguousarray(records[name]) for name in ("return", "length", "seconds"))
    return returns, lengths, seconds


def _joined_columns(blocks: Sequence[list[list[Any]]]) -> list[list[Any]]:
    return [[item for row in rows for item in row] for rows in zip(*blocks, strict=True)]
