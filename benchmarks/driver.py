"""Overhead of a rollout in the main process: processor time, copies and messages, and memory over 10,000 rollouts.

One case has rare rollouts of 4,096 env steps, for which caches are cold. The other case has tiny rollouts in quick
succession.

python benchmarks/driver.py
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from lib.common import pss_mb, save

from parenv import AsyncWorkerPool, Stop, TorchPolicy


class Still(gym.Env[Any, Any]):
    """Environment with almost free steps. Its episodes have 20 steps."""

    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._observation, self._steps = np.zeros(4, np.float32), 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin an episode."""
        return self._observation, {}

    def step(self, action: Any) -> Any:
        """Return the same observation, and end the episode after 20 steps."""
        self._steps += 1
        return self._observation, 1.0, self._steps % 20 == 0, False, {}


class Agent(torch.nn.Module):
    """Policy with the extras ``log_prob`` and ``value``, as for PPO."""

    def act(self, observations: Any) -> Any:
        """Return zeros for actions, log-probabilities and values."""
        batch = len(observations)
        return torch.zeros(batch, dtype=torch.int64), torch.zeros(batch), torch.zeros(batch)


def cpu_per_rollout(T: int, num_envs: int, rollouts: int) -> dict[str, float]:
    """Return the main thread's microseconds per rollout, the number of copied rollouts, and the messages per rollout.

    Args:
        T: Length of a rollout in env steps.
        num_envs: Number of sub-environments.
        rollouts: Number of rollouts to measure.
    """
    policy = TorchPolicy(Agent(), "act", ("actions", "log_prob", "value"))
    with AsyncWorkerPool(Still, policy, num_envs=num_envs, num_workers=2, rollout_length=T) as pool:
        stream = pool.rollouts()
        for _ in range(20):
            next(stream)
        before, began = pool.statistics(), time.thread_time()
        for _ in range(rollouts):
            next(stream)
        spent, after = time.thread_time() - began, pool.statistics()
    return {
        "driver_us_per_rollout": spent / rollouts * 1e6,
        "copied_rollouts": after.copied_rollouts - before.copied_rollouts,
        "messages_per_rollout": (after.messages - before.messages) / rollouts,
    }


def memory_over(rollouts: int) -> dict[str, float]:
    """Return the PSS of main process and workers in MB, after a tenth of the rollouts and after all of them."""
    policy = TorchPolicy(Agent(), "act", ("actions", "log_prob", "value"))
    with AsyncWorkerPool(Still, policy, num_envs=4, num_workers=2, rollout_length=16) as pool:
        pids = [os.getpid(), *(pool._session.workers.pid(worker) for worker in range(pool.num_workers))]
        found = {}
        for seen, rollout in enumerate(pool.rollouts(Stop(env_steps=rollouts * 32)), start=1):
            pool.publish(policy)
            if seen in (rollouts // 10, rollouts):
                found[f"pss_mb_after_{seen}_rollouts"] = pss_mb(pids)
            del rollout
        return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    seldom = [cpu_per_rollout(128, 64, 300) for _ in range(5)]
    often = [cpu_per_rollout(4, 4, 3000) for _ in range(5)]
    save(
        "driver",
        {
            **{key: statistics.median(one[key] for one in seldom) for key in seldom[0]},
            "driver_us_per_rollout_back_to_back": statistics.median(one["driver_us_per_rollout"] for one in often),
            **memory_over(10_000),
        },
    )
