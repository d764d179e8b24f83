"""From the arguments of a pool to a plan that has been checked, before any process starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenv.crew.arguments import at_least, one_of, split
from parenv.envs.factories import Factories, as_factories
from parenv.errors import ConfigurationError
from parenv.options import Mode, OnStale, Parallelism, WorkerOptions
from parenv.policy.policy import as_policy


@dataclass(frozen=True)
class Plan:
    """What a pool is to be.

    Args:
        factories: make the sub-environments.
        policy: what the user gave.
        shares: sub-environments of each worker.
        num_envs_is_given: whether the user said how many there are in all.
        inline: whether the only worker runs in this process.
        mode: ``"sync"`` or ``"async"``.
        rollout_length: ``T``.
        postprocess: the user's, or ``None``.
        prefetch: rollouts a worker may run ahead.
        max_policy_lag: in publishes, or ``None``.
        on_stale: ``"pace"`` or ``"drop"``.
        seed: root of all seeds.
        options: of the workers.
    """

    factories: Factories
    policy: Any
    shares: tuple[int, ...]
    num_envs_is_given: bool
    inline: bool
    mode: Mode
    rollout_length: int
    postprocess: Callable[[Any, Any], Any] | None
    prefetch: int
    max_policy_lag: int | None
    on_stale: OnStale
    seed: int
    options: WorkerOptions


def make_plan(
    env_fn: Any,
    policy: Any,
    *,
    num_envs: int | None,
    num_workers: int | None,
    mode: Mode,
    parallelism: Parallelism,
    rollout_length: int,
    postprocess: Callable[[Any, Any], Any] | None,
    prefetch: int,
    max_policy_lag: int | None,
    on_stale: OnStale,
    seed: int | None,
    options: WorkerOptions,
) -> Plan:
    """Check the arguments of a pool.

    Raises:
        ConfigurationError: one of them is wrong; the message says what would be right.
    """
    one_of("mode", mode, ("sync", "async"))
    one_of("parallelism", parallelism, ("experience", "gradient"))
    one_of("on_stale", on_stale, ("pace", "drop"))
    if parallelism == "gradient":
        raise ConfigurationError('parallelism="gradient" is not there yet; workers can only send experience')
    at_least("rollout_length", rollout_length, 1)
    at_least("prefetch", prefetch, 0)
    for name, value, least in (
        ("num_envs", num_envs, 1),
        ("num_workers", num_workers, 0),
        ("max_policy_lag", max_policy_lag, 0),
    ):
        if value is not None:
            at_least(name, value, least)
    if mode == "sync" and max_policy_lag is not None:
        raise ConfigurationError(
            'max_policy_lag is for mode="async": with mode="sync" every batch is by the newest version'
        )
    if postprocess is not None and not callable(postprocess):
        raise ConfigurationError(f"postprocess must be a callable (policy, rollout) -> dict, got {postprocess!r}")
    as_policy(policy)
    factories = as_factories(env_fn)
    if num_envs is not None and factories.count not in (None, num_envs):
        raise ConfigurationError(f"env_fn is a sequence of {factories.count} factories, but num_envs={num_envs}")
    shares = split(factories.count or num_envs, num_workers)
    if seed is not None:
        at_least("seed", seed, 0)
    return Plan(
        factories=factories,
        policy=policy,
        shares=shares,
        num_envs_is_given=(factories.count or num_envs) is not None,
        inline=num_workers == 0,
        mode=mode,
        rollout_length=rollout_length,
        postprocess=postprocess,
        prefetch=prefetch,
        max_policy_lag=max_policy_lag,
        on_stale=on_stale,
        seed=int(np.random.SeedSequence().entropy) % 2**63 if seed is None else int(seed),  # type: ignore[arg-type]
        options=options,
    )
