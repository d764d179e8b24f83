"""Start-up time and memory of pools with 8 workers, and of vector envs with 1,024 CartPoles.

python benchmarks/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import psutil
import torch
from lib.common import pss_mb, save

from parenv import AsyncWorkerPool, ParallelVectorEnv, TorchPolicy

REPEATS = 5
AGENT = """
import torch
class Agent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor, self.critic = torch.nn.Linear(64, 2), torch.nn.Linear(64, 1)
    def get_action_and_value(self, observations):
        hidden = self.body(observations)
        distribution = torch.distributions.Categorical(logits=self.actor(hidden))
        actions = distribution.sample()
        return actions, distribution.log_prob(actions), None, self.critic(hidden).squeeze(-1)
"""
FRESH = f"""
import time
began = time.perf_counter()
import torch
imported = time.perf_counter() - began
{AGENT}
from parenv import AsyncWorkerPool, TorchPolicy
agent = Agent()
began = time.perf_counter()
pool = AsyncWorkerPool("CartPole-v1", TorchPolicy(agent), num_workers=8)
print(imported, time.perf_counter() - began)
pool.close()
"""


def fresh_interpreter() -> tuple[float, float]:
    """Return the seconds of ``import torch`` and of the first pool, in a fresh interpreter."""
    output = subprocess.run([sys.executable, "-c", FRESH], check=True, capture_output=True, text=True).stdout
    imported, made = map(float, output.split())
    return imported, made


def pool_of(policy: Any, num_workers: int) -> tuple[float, float]:
    """Return the seconds until a pool is ready, and the PSS of its workers in MB after a rollout.

    The fork server must be running already.
    """
    began = time.perf_counter()
    with AsyncWorkerPool("CartPole-v1", policy, num_workers=num_workers, mode="sync") as pool:
        ready = time.perf_counter() - began
        next(pool.rollouts())
        workers = pool._session.workers
        return ready, pss_mb([workers.pid(worker) for worker in range(len(workers.shares))])


def many(num_envs: int) -> dict[str, Any]:
    """Measure seconds to the first observations of CartPoles, and the memory of all processes but the main process."""
    factories = [lambda: gym.make("CartPole-v1")] * num_envs
    ParallelVectorEnv(factories[:1], num_workers=1).close()

    def start(make: Callable[[], Any]) -> dict[str, float]:
        began = time.perf_counter()
        envs = make()
        envs.reset(seed=0)
        seconds = time.perf_counter() - began
        children = psutil.Process().children(recursive=True)
        found = {"seconds": seconds, "processes": len(children), "pss_mb": pss_mb([c.pid for c in children])}
        envs.close()
        return found

    return {
        "parenv, 16 workers": start(lambda: ParallelVectorEnv(factories, num_workers=16)),
        "gymnasium AsyncVectorEnv": start(lambda: gym.vector.AsyncVectorEnv(factories, context="fork")),
    }


if __name__ == "__main__":
    # Runs before the pools, because their fork server imports torch and would count as memory here.
    save("startup_many", many(1024))
    names: dict[str, Any] = {}
    exec(AGENT, names)
    policy = TorchPolicy(names["Agent"]())
    torch.set_num_threads(1)
    pool_of(policy, 1)
    fresh = [fresh_interpreter() for _ in range(REPEATS)]
    warm = [pool_of(policy, 8) for _ in range(REPEATS)]
    few = [pool_of(policy, 2) for _ in range(REPEATS)]
    median = statistics.median
    save(
        "startup",
        {
            "seconds_to_8_workers_with_a_running_fork_server": median(ready for ready, _ in warm),
            "seconds_of_import_torch": median(imported for imported, _ in fresh),
            "seconds_to_the_first_pool": median(made for _, made in fresh),
            "first_pool_beyond_import_torch": median(made - imported for imported, made in fresh),
            "pss_mb_per_further_worker": (median(mb for _, mb in warm) - median(mb for _, mb in few)) / 6,
        },
    )
