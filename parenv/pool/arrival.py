"""Arrivals: rollouts as they come from workers, with the gradients and times that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from parenv.experience.assembly import Arrays, Columns, assemble, assemble_agents
from parenv.experience.endings import ENVIRONMENT_ERROR
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.failures import Failure
from parenv.experience.rollout import Rollout
from parenv.memory.layout import WHOLE_EPISODES, RolloutSpec, SlotLayout, SlotSpec
from parenv.pool.versions import Versions
from parenv.protocol.messages import Commit


@dataclass(frozen=True)
class Block:
    """Content of a slot: the columns of one worker, or, if all workers fill it together, of all side by side.

    Args:
        layout: Layout of the slot.
        worker: Worker that fills it, or ``None`` if all do.
        workers: Workers that fill it, in the order of their columns.
        columns: Columns of each of these workers.
        env_ids_of: Sub-environments of each of these workers.
        env_ids: Sub-environments of all of them, int64 ``[B]``.
    """

    layout: SlotLayout
    worker: int | None
    workers: range
    columns: tuple[Columns, ...]
    env_ids_of: tuple[range, ...]
    env_ids: Any


class Arrival(NamedTuple):
    """Rollout of one or several credits, and a gradient of each if workers compute gradients.

    Args:
        rollout: Rollout that the workers collected.
        workers: These workers.
        env_ids: Sub-environments of each.
        samples: Number of env steps of each.
        gradients: Flat gradients in rows, uint8 ``[K, n]``. ``None`` for experience.
        norms: 2-norm of each gradient before clipping.
        metrics: Metrics that each ``loss_fn`` returned.
        commits: Times of each worker, :data:`~parenv.memory.layout.COMMIT_DTYPE` ``[K]``.
        replaced: ``[env_id, doing, exception, traceback]`` of each sub-environment that was replaced, by worker.
    """

    rollout: Rollout
    workers: Sequence[int]
    env_ids: Sequence[Sequence[int]]
    samples: Sequence[int]
    gradients: Any
    norms: Sequence[float]
    metrics: Sequence[dict[str, float]]
    commits: Any
    replaced: Sequence[Sequence[Sequence[Any]]]

    def failures(self) -> Iterator[tuple[int, Failure]]:
        """Yield the index of the worker among :attr:`workers`, and the failure of each replaced sub-environment."""
        for i, replaced in enumerate(self.replaced):
            for env_id, *texts in replaced:
                yield i, Failure(self.workers[i], env_id, ENVIRONMENT_ERROR, *texts)

    def copy(self) -> Arrival:
        """Return the same with memory of its own."""
        gradients = None if self.gradients is None else self.gradients.copy()
        return self._replace(rollout=self.rollout.copy(), gradients=gradients)


ArrivalOf = Callable[[Block, Any, Sequence[Commit], int, int], Arrival]
"""``(block, arrays of its slot, commits of its workers in the order of their columns, version, lag) -> arrival``."""


def arrivals(spec: SlotSpec, versions: Versions) -> ArrivalOf:
    """Return the function that makes an arrival from the arrays of a slot with this content."""
    if spec.is_named:
        return partial(_arrival_by_policy, spec, versions)
    return partial(_arrival, spec.groups[0])


def _arrival(
    spec: RolloutSpec,
    block: Block,
    arrays: Sequence[Arrays],
    commits: Sequence[Commit],
    policy_version: int,
    policy_lag: int,
) -> Arrival:
    columns = [
        mine._replace(objects=said.objects) if said.objects else mine
        for mine, said in zip(block.columns, commits, strict=True)
    ]
    rollout = assemble(
        spec,
        arrays[0],
        columns,
        env_ids=block.env_ids,
        worker=block.worker,
        policy_version=policy_version,
        policy_lag=policy_lag,
        extras=[extra.name for extra in spec.extras],
    )
    if spec.rollout_length == WHOLE_EPISODES:
        episodes = [EpisodeStatistics.of_columns(*said.episodes) for said in commits]
        rollout = replace(rollout, episodes=EpisodeStatistics.joined(episodes))
    return _arrived(rollout, block, arrays[0], commits, _samples(rollout, columns, commits))


def _arrival_by_policy(
    spec: SlotSpec,
    versions: Versions,
    block: Block,
    arrays: Any,
    commits: Sequence[Commit],
    policy_version: int,
    policy_lag: int,
) -> Arrival:
    for worker, said in zip(block.workers, commits, strict=True):
        versions.note_use(worker, said.table, said.in_use)
    played = versions.played(dict(enumerate(arrays[0]["versions", 0][0].tolist())))
    samples = [said.env_steps for said in commits]
    rollouts = assemble_agents(
        spec,
        arrays,
        block.columns,
        played,
        env_ids=block.env_ids,
        worker=block.worker,
        policy_version=policy_version,
        num_steps=sum(samples),
    )
    return _arrived(rollouts, block, arrays[0], commits, samples)


def _arrived(rollout: Any, block: Block, arrays: Arrays, commits: Sequence[Commit], samples: Sequence[int]) -> Arrival:
    stamps = arrays["commits", 0].copy()
    return Arrival(
        rollout,
        workers=block.workers,
        env_ids=block.env_ids_of,
        samples=samples,
        gradients=arrays.get(("gradients", 0)),
        norms=stamps["gradient_norm"].tolist(),
        metrics=[said.metrics for said in commits],
        commits=stamps,
        replaced=[said.replaced for said in commits],
    )


def _samples(rollout: Rollout, columns: Sequence[Columns], commits: Sequence[Commit]) -> list[int]:
    """Return the env steps of each worker. Nothing is counted if every step is valid."""
    samples = [said.env_steps for said in commits]
    if None not in samples:
        return samples
    first, T = columns[0].first, rollout.rewards.shape[0]
    is_whole = not rollout.has_resets
    for i, mine in enumerate(columns):
        if samples[i] is None:
            part = slice(mine.first - first, mine.stop - first)
            samples[i] = T * (mine.stop - mine.first) if is_whole else int(rollout.valid[:, part].sum())
    return samples
