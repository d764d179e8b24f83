"""The arguments of a pool, as :class:`~parenv.AsyncWorkerPool` documents them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gymnasium import Space

from parenv.envs.factories import EnvFn
from parenv.options import GradientOptions, Mode, OnStale, Parallelism, Placing, WorkerOptions
from parenv.policy.assignment import PolicyOf
from parenv.policy.policy import PolicyLike


@dataclass(frozen=True, kw_only=True)
class PoolArguments:
    """What the user passed, not checked yet; :func:`~parenv.pool.pool_plan.make_plan` checks it."""

    env_fn: EnvFn
    policy: PolicyLike | Mapping[str, PolicyLike]
    policy_of: PolicyOf | None
    num_envs: int | None
    num_workers: int | None
    mode: Mode
    parallelism: Parallelism
    rollout_length: int | Literal["episode"]
    loss_fn: Callable[[Any, Any], Any] | None
    postprocess: Callable[[Any, Any], Any] | None
    infos: Sequence[str] | Mapping[str, Any]
    prefetch: int
    max_policy_lag: int | None
    on_stale: OnStale
    seed: int | None
    gradient: GradientOptions | None
    settings: Mapping[str, Any] | None
    workers: WorkerOptions | None
    record: str | os.PathLike[str] | None
    replay: str | os.PathLike[str] | None
    placement: Placing
    max_frozen: int
    spaces: tuple[Space[Any], Space[Any]] | Literal["make"] | None

    @property
    def named_policies(self) -> Mapping[str, PolicyLike] | None:
        """The policies by name, or ``None`` for a single one without a name."""
        return self.policy if isinstance(self.policy, Mapping) else None
