"""What arrives from workers, before it is yielded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from parenv.experience.assembly import Arrays, assemble
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.rollout import Rollout
from parenv.memory.layout import WHOLE_EPISODES, RolloutSpec
from parenv.pool.blocks import Block
from parenv.protocol.messages import Commit


class Arrival(NamedTuple):
    """What came of one or several credits: a rollout, and, where workers run backward, a gradient from each.

    Args:
        rollout: what they collected.
        workers: who.
        env_ids: the sub-environments of each.
        samples: env steps of each.
        gradients: uint8 ``[K, n]``, a flat gradient in each row; ``None`` for experience.
        norms: 2-norm of each gradient before clipping.
        metrics: what each ``loss_fn`` returned beside the loss.
        commits: :data:`~parenv.memory.layout.COMMIT_DTYPE` ``[K]``, what each says of its time.
        replaced: of each, ``[env_id, doing, exception as text]`` of sub-environments that were replaced meanwhile.
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

    def copy(self) -> Arrival:
        """The same with memory of its own."""
        gradients = None if self.gradients is None else self.gradients.copy()
        return self._replace(rollout=self.rollout.copy(), gradients=gradients)


ArrivalOf = Callable[[Block, Any, Sequence[Commit], int, int], Arrival]
"""``(block, arrays of its slot, commits of its workers, version, lag) -> arrival``."""


def arrival_of(
    spec: RolloutSpec, block: Block, arrays: Arrays, commits: Sequence[Commit], policy_version: int, policy_lag: int
) -> Arrival:
    """What came of the credits for one slot.

    Args:
        spec: what the slot holds.
        block: whose it is.
        arrays: those of the slot.
        commits: of the block's workers, in the order of their columns.
        policy_version: the version that acted.
        policy_lag: in publishes.
    """
    columns = [
        mine._replace(objects=said.objects) if said.objects else mine
        for mine, said in zip(block.columns, commits, strict=True)
    ]
    rollout = assemble(
        spec,
        arrays,
        columns,
        env_ids=block.env_ids,
        worker=block.worker,
        policy_version=policy_version,
        policy_lag=policy_lag,
        extras=[extra.name for extra in spec.extras],
    )
    reports: list[Any] = [
        said.report or (_env_steps(rollout, mine.first - columns[0].first, mine.stop - columns[0].first), {}, None)
        for mine, said in zip(columns, commits, strict=True)
    ]
    if spec.rollout_length == WHOLE_EPISODES:
        episodes = [EpisodeStatistics.of(*ended) for _, _, ended in reports]
        rollout = replace(rollout, episodes=EpisodeStatistics.joined(episodes))
    samples, metrics, _ = zip(*reports, strict=True)
    return arrived(rollout, block, arrays, commits, samples, metrics)


def arrived(
    rollout: Any,
    block: Block,
    arrays: Arrays,
    commits: Sequence[Commit],
    samples: Sequence[int],
    metrics: Sequence[dict[str, float]],
) -> Arrival:
    """A rollout with what else came of the credits for its slot."""
    stamps = arrays["commits", 0].copy()
    return Arrival(
        rollout,
        workers=block.workers,
        env_ids=block.env_ids_of,
        samples=samples,
        gradients=arrays.get(("gradients", 0)),
        norms=stamps["gradient_norm"].tolist(),
        metrics=metrics,
        commits=stamps,
        replaced=[said.replaced for said in commits],
    )


def _env_steps(rollout: Rollout, first: int, stop: int) -> int:
    """How many of some columns: nothing is counted where every step is valid."""
    if rollout.num_steps == rollout.rewards.size:
        return len(rollout.rewards) * (stop - first)
    return int(rollout.valid[:, first:stop].sum())
