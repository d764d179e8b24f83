"""What a worker needs to know, pickled once by the driver and read by every worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parenv.envs.factories import Factories
from parenv.options import WorkerOptions


@dataclass(frozen=True)
class Job:
    """One for all workers of a pool.

    Args:
        factories: make the sub-environments.
        policy: what the user gave.
        postprocess: ``(policy, rollout) -> {name: array}``, or ``None``.
        options: the user's.
        rollout_length: ``T``.
        shares: sub-environments of each worker.
        num_envs_is_given: whether the user said how many sub-environments there are.
        seed: root of all seeds.
        weights_offset: where the flat weights begin in shared memory, in bytes.
    """

    factories: Factories
    policy: Any
    postprocess: Callable[[Any, Any], Any] | None
    options: WorkerOptions
    rollout_length: int
    shares: tuple[int, ...]
    num_envs_is_given: bool
    seed: int
    weights_offset: int
