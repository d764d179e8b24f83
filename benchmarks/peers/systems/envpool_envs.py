"""EnvPool, whose own C++ environments are stepped by the threads of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import envpool

from systems.loops import Close, Measure, sampled_actions, step_rate

IDS = {"cartpole": "CartPole-v1", "lunarlander": "LunarLander-v3", "halfcheetah": "HalfCheetah-v5", "pong": "Pong-v5"}


def stepping(case: str, num_envs: int, num_threads: int) -> tuple[Measure, Close]:
    """Measure ``step``. EnvPool's Pong has the usual preprocessing by default."""
    envs = envpool.make(IDS[case], env_type="gymnasium", num_envs=num_envs, num_threads=num_threads, seed=0)
    envs.reset()
    return step_rate(envs.step, sampled_actions(case, num_envs)), envs.close


def ready(case: str, num_envs: int, num_threads: int, batch_size: int) -> tuple[Measure, Close]:
    """Measure ``recv`` and ``send`` of the sub-environments that are ready."""
    envs = envpool.make(
        IDS[case], env_type="gymnasium", num_envs=num_envs, batch_size=batch_size, num_threads=num_threads, seed=0
    )
    envs.async_reset()
    step: Callable[[Any], object] = lambda actions: envs.send(actions, envs.recv()[4]["env_id"])  # noqa: E731
    return step_rate(step, sampled_actions(case, batch_size)), envs.close
