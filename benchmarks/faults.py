"""Time until the pool detects the death or hang of a worker, and until the replacement takes its first step.

The pool has CartPoles, a torch policy and two workers, and the main process waits for rollouts. ``nemesis.py`` injects
faults over a longer time.

python benchmarks/faults.py
"""

from __future__ import annotations

import logging
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from lib.common import save

from parenv import AsyncWorkerPool, RestartPolicy, TorchPolicy, WorkerOptions

REPEATS = 30
LIMITS_S = (0.5, 1.0, 2.0)
OFTEN = RestartPolicy(max_restarts=10_000, backoff_s=1e-3, max_backoff_s=2e-3)


class Agent(torch.nn.Module):
    """MLP with layers of 4, 64, 64 and 2 units."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def act(self, observations: Any) -> Any:
        """Return sampled actions ``[N]``."""
        return torch.distributions.Categorical(logits=self.body(observations)).sample()


class Watched(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that records the time of its first step, and hangs if ``hang`` is set.

    Attributes:
        first_step: Time of the first step on the monotonic clock in seconds, or 0 before it.
        hang: Whether the next step never returns.
    """

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.first_step, self.hang = 0.0, False

    def step(self, action: Any) -> Any:
        """Take a step, or hang."""
        self.first_step = self.first_step or time.monotonic()
        while self.hang:
            time.sleep(1000)
        return self.env.step(action)


class Noticed(logging.Handler):
    """Handler that records the times of the pool's messages about restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Record the time."""
        self.at.append(time.monotonic())


def pool_of(**options: Any) -> AsyncWorkerPool:
    """Make a pool of 16 sub-environments in two workers.

    Args:
        **options: Further arguments of :class:`~parenv.WorkerOptions`.
    """
    workers = WorkerOptions(restart=OFTEN, **options)
    policy = TorchPolicy(Agent(), "act", ("actions",))
    return AsyncWorkerPool(Watched, policy, num_envs=16, num_workers=2, mode="sync", workers=workers)


def killed(noticed: Noticed) -> dict[str, Any]:
    """Kill workers at random times and return the time until detection and until the first step of the replacement."""
    until_noticed, until_stepping = [], []
    with pool_of() as pool:
        stream = pool.rollouts()
        next(stream)
        for number in range(REPEATS):
            noticed.at.clear()
            pid, died = pool._session.workers.pid(number % 2), [0.0]
            assert pid > 0

            def kill(pid: int = pid, died: list[float] = died) -> None:
                died[0] = time.monotonic()
                os.kill(pid, signal.SIGKILL)

            timer = threading.Timer(random.uniform(0.02, 0.1), kill)
            timer.start()
            while not next(stream).restarted.any():
                pass
            timer.join()
            first = min(pool.get_attr("first_step", env_ids=range(8 * (number % 2), 8 * (number % 2) + 8)))
            until_noticed.append(noticed.at[0] - died[0])
            until_stepping.append(first - died[0])
    return {"until noticed, ms": spread(until_noticed, 1e3), "until another one steps, s": spread(until_stepping, 1.0)}


def hung(limit_s: float, noticed: Noticed) -> dict[str, float]:
    """Make steps hang and return the time until detection, as a multiple of the time limit in seconds."""
    over = []
    with pool_of(step_timeout_s=limit_s) as pool:
        stream = pool.rollouts()
        for _ in range(3):
            next(stream)
            noticed.at.clear()
            pool.set_attr("hang", True, env_ids=[3])
            began = time.monotonic()
            while not next(stream).restarted.any():
                pass
            over.append((noticed.at[0] - began) / limit_s)
    return spread(over, 1.0)


def spread(values: Sequence[float], unit: float) -> dict[str, float]:
    """Return median and maximum of values, multiplied by ``unit``."""
    return {"median": statistics.median(values) * unit, "worst": max(values) * unit}


if __name__ == "__main__":
    noticed = Noticed()
    logger = logging.getLogger("parenv")
    logger.addHandler(noticed)
    logger.propagate = False
    found = killed(noticed)
    for limit_s in LIMITS_S:
        found[f"hung, over a limit of {limit_s:g} s"] = hung(limit_s, noticed)
    save("faults", found)
