"""Transitions: a rollout without its two axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from parenv.experience.summary import Summarized, shapes_of
from parenv.memory.trees import Block, Tree


@dataclass(frozen=True, repr=False)
class Transitions(Summarized, Generic[Block]):
    """A rollout flattened: its ``N`` transitions in time-major order. For replay buffers.

    ``N`` is ``T * B``, less the steps that :attr:`Rollout.valid` leaves out.

    Fields of spaces without a fixed size are lists of ``N`` values; all others are arrays ``[N, ...]``.

    Args:
        observations: ``[N, *obs]``.
        actions: ``[N, *action]``.
        rewards: float32 ``[N]``.
        terminated: bool ``[N]``.
        truncated: bool ``[N]``.
        next_observations: the true next ones, ``[N, *obs]``.
        env_ids: int64 ``[N]``.
        extras: each ``[N, ...]``.
        infos: each ``[N, ...]``, as in a rollout.
        next_infos: likewise.
        next_known: bool ``[N]``, as :attr:`Rollout.next_known`.

    >>> from parenv import AsyncWorkerPool
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", lean, num_workers=0, num_envs=2, rollout_length=4) as pool:
    ...     transitions = next(pool.rollouts()).transitions()
    >>> len(transitions), transitions.observations.shape, transitions.env_ids.tolist()
    (8, (8, 4), [0, 1, 0, 1, 0, 1, 0, 1])
    """

    observations: Tree
    actions: Tree
    rewards: Block
    terminated: Block
    truncated: Block
    next_observations: Tree
    env_ids: Block
    extras: Mapping[str, Block]
    infos: Mapping[str, Block] = field(default_factory=dict)
    next_infos: Mapping[str, Block] = field(default_factory=dict)
    next_known: Block | None = None

    def __len__(self) -> int:
        return len(self.rewards)

    def _facts(self) -> dict[str, Any]:
        shown = ("observations", "actions", *(name for name in ("extras", "infos") if getattr(self, name)))
        return {"N": len(self), **{name: shapes_of(getattr(self, name)) for name in shown}}
