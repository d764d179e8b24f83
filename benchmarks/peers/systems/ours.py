"""Vector envs of parenv, and its pool without a policy network."""

from __future__ import annotations

from typing import Any

import numpy as np
from environments import factory

from parenv import AsyncWorkerPool, ParallelVectorEnv
from systems.loops import Close, Measure, first_observation, sampled_actions, step_rate


def stepping(case: str, num_envs: int, num_workers: int, **arguments: Any) -> tuple[Measure, Close]:
    """Measure ``step``. With 0 workers, this process steps all sub-environments."""
    envs = ParallelVectorEnv([factory(case)] * num_envs, num_workers=num_workers, **arguments)
    envs.reset(seed=0)
    return step_rate(envs.step, sampled_actions(case, num_envs)), envs.close


def ready(case: str, num_envs: int, num_workers: int, batch_size: int) -> tuple[Measure, Close]:
    """Measure ``recv`` and ``send`` of the sub-environments that are ready."""
    envs = ParallelVectorEnv([factory(case)] * num_envs, num_workers=num_workers, batch_size=batch_size)
    envs.reset(seed=0)
    envs.send(sampled_actions(case, num_envs)[0], np.arange(num_envs))

    def step(actions: Any) -> None:
        envs.send(actions, envs.recv()[4]["env_id"])

    return step_rate(step, sampled_actions(case, batch_size)), envs.close


def without_a_policy(case: str, num_workers: int, rollout_length: int) -> tuple[Measure, Close]:
    """Measure rollouts of a pool with a worker for each environment and constant actions."""
    from lib.common import consumption_rate

    pool = _pool(case, num_workers, rollout_length)
    return lambda seconds: consumption_rate(pool, seconds), pool.close


def startup(case: str, num_envs: int, warm: bool) -> tuple[Any, Close]:
    """Measure the start of a vector env with a worker for each environment.

    Args:
        case: Kind of environment.
        num_envs: Number of environments.
        warm: Whether the fork server runs already, as it does after the first vector env of a process.
    """
    if warm:
        ParallelVectorEnv([factory(case)], num_workers=1).close()
    return first_observation(
        lambda: ParallelVectorEnv([factory(case)] * num_envs, num_workers=num_envs), lambda envs: envs.reset(seed=0)
    )


def pool_startup(case: str, num_workers: int, warm: bool) -> tuple[Any, Close]:
    """Measure the start of a pool until its first rollout, which has one step. ``warm`` is as in :func:`startup`."""
    if warm:
        _pool(case, 1, 1).close()
    return first_observation(lambda: _pool(case, num_workers, 1), lambda pool: next(pool.rollouts()))


def _pool(case: str, num_workers: int, rollout_length: int) -> AsyncWorkerPool:
    return AsyncWorkerPool(
        factory(case), _first_actions, num_envs=num_workers, num_workers=num_workers, rollout_length=rollout_length
    )


def _first_actions(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)
