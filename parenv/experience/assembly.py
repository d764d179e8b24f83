"""From the arrays of a slot to a Rollout: the same for a worker's own columns and for a whole block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.rollout import Ends, Rollout
from parenv.memory.layout import RolloutSpec
from parenv.memory.spaces import Leaf, unflatten

Arrays = Mapping[tuple[str, Any], Any]


class Share(NamedTuple):
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
    shares: Sequence[Share],
    *,
    env_ids: Any,
    worker: int | None,
    policy_version: int,
    policy_lag: int,
    extras: Sequence[str],
) -> Rollout:
    """Build the rollout of adjacent shares of a slot. No array is copied, but for the few bytes of episode ends.

    Args:
        spec: what the slot holds.
        arrays: its arrays.
        shares: the parts, in the order of their columns.
        env_ids: int64 ``[B]``.
        worker: the worker of the only share, or ``None``.
        policy_version: the version that acted.
        policy_lag: in publishes.
        extras: names of the extras that are written by now.
    """
    first, stop, T = shares[0].first, shares[-1].stop, spec.rollout_length

    def leaf_blocks(name: str, of: Sequence[Leaf]) -> list[Any]:
        return [
            _joined_columns([share.objects[name, i] for share in shares])
            if leaf.dtype is None
            else arrays[name, i][:, first:stop]
            for i, leaf in enumerate(of)
        ]

    carry = [arrays["carry", i][first:stop] for i in range(len(spec.carry))]
    observations = leaf_blocks("observations", spec.observations)
    parts = [_ends_of(spec, arrays, share, first) for share in shares]
    return Rollout(
        observations=unflatten(spec.observations, [block[:T] for block in observations]),
        actions=unflatten(spec.actions, leaf_blocks("actions", spec.actions)),
        rewards=arrays["rewards", 0][:, first:stop],
        terminated=arrays["terminated", 0][:, first:stop],
        truncated=arrays["truncated", 0][:, first:stop],
        last_observations=unflatten(spec.observations, [block[T] for block in observations]),
        extras={name: arrays["extras", name][:, first:stop] for name in extras},
        initial_carry=unflatten(spec.carry, carry) if carry else None,
        env_ids=env_ids,
        worker=worker,
        policy_version=policy_version,
        policy_lag=policy_lag,
        restarted=arrays["restarted", 0][first:stop],
        episodes=EpisodeStatistics.joined([episodes_of(records, env_ids) for _, records in parts]),
        ends=[ends for ends, _ in parts],
        successors=unflatten(spec.observations, [block[1:] for block in observations]),
        infos={
            name: arrays["seen", name][:T, first:stop] if info.acted_on else arrays["infos", name][:, first:stop]
            for info in spec.infos
            for name in info.names
        },
        next_infos={name: arrays["infos", name][:, first:stop] for info in spec.infos for name in info.names},
    )


def _ends_of(spec: RolloutSpec, arrays: Arrays, share: Share, first: int) -> tuple[Ends, Any]:
    begin = spec.rollout_length * share.first
    count = int(arrays["commits", 0]["num_ends"][share.position])
    records = arrays["ends", 0][begin : begin + count].copy()
    records["column"] -= first
    finals = [
        share.objects["finals", i] if leaf.dtype is None else arrays["finals", i][begin : begin + count]
        for i, leaf in enumerate(spec.observations)
    ]
    steps, columns = records["step"].astype(np.int64), records["column"].astype(np.int64)
    return Ends(steps, columns, unflatten(spec.observations, finals)), records


def episodes_of(records: Any, env_ids: Any) -> EpisodeStatistics:
    """The episodes among ends, given as :data:`~parenv.memory.layout.END_DTYPE`; those of lives only are none."""
    records = records[records["counts"] != 0]
    return EpisodeStatistics(
        np.ascontiguousarray(records["return"]),
        np.ascontiguousarray(records["length"]),
        np.ascontiguousarray(records["seconds"]),
        env_ids[records["column"]],
    )


def _joined_columns(blocks: Sequence[list[list[Any]]]) -> list[list[Any]]:
    return [[item for row in rows for item in row] for rows in zip(*blocks, strict=True)]
