"""What a worker needs to know, pickled once by the driver and read by every worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parenv.envs.factories import Factories
from parenv.experience.gradient import GradientLayout
from parenv.memory.progress import header_bytes
from parenv.options import WorkerOptions


@dataclass(frozen=True)
class GradientJob:
    """What a worker that runs backward needs to know.

    Args:
        loss_fn: the user's ``(policy, rollout) -> loss | (loss, metrics)``.
        layout: of the driver's policy.
        max_norm: where a worker's gradient is clipped, or ``None``.
    """

    loss_fn: Callable[[Any, Any], Any]
    layout: GradientLayout
    max_norm: float | None


@dataclass(frozen=True)
class Job:
    """One for all workers of a pool.

    Args:
        factories: make the sub-environments.
        policy: what the user gave.
        postprocess: ``(policy, rollout) -> {name: array}``, or ``None``.
        options: the user's.
        rollout_length: ``T``, or :data:`~parenv.memory.layout.WHOLE_EPISODES`.
        shares: sub-environments of each worker.
        first_worker: workers of other learners before these.
        first_env_id: sub-environments of other learners before these.
        num_envs_is_given: whether the user said how many sub-environments there are.
        gradient: how to compute gradients, or ``None`` for experience.
        infos: names of infos that come along.
        settings: of version 0, beside those that the policy has.
        seed: root of all seeds.
    """

    factories: Factories
    policy: Any
    postprocess: Callable[[Any, Any], Any] | None
    options: WorkerOptions
    rollout_length: int
    shares: tuple[int, ...]
    first_worker: int
    first_env_id: int
    num_envs_is_given: bool
    gradient: GradientJob | None
    infos: tuple[str, ...]
    settings: Mapping[str, Any]
    seed: int

    @property
    def weights_offset(self) -> int:
        """Where the flat weights begin in shared memory, in bytes."""
        return header_bytes(len(self.shares))
