"""Centralized inference with ``WorkerOptions(step_workers=)``, compared with inference in each worker.

One policy imitates a device that serves one process at a time, such as a GPU. It acquires a lock and sleeps for a time
that does not depend on the number of rows. The other policy is a convolutional network on the CPU.

python benchmarks/central.py
"""

from __future__ import annotations

import fcntl
import statistics
import tempfile
import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from lib.common import interleaved, keep, summary

from parenv import AsyncWorkerPool, TorchPolicy, WorkerOptions

FORWARDS_MS = (0.1, 1.0, 5.0, 20.0)
ENVS = (8, 16, 32, 64)
SHAPE = (1, 32, 32)
ROWS, ROUNDS, REPEATS = 16, 3, 3
PROCESSES, STEP_US = 4, 200.0
LOCAL, CENTRAL = "local", "central"


class Busy(gym.Env[Any, Any]):
    """Environment that computes for a fixed time in every step.

    Args:
        step_us: Duration of a step in microseconds.
    """

    def __init__(self, step_us: float) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(0, 1, SHAPE), gym.spaces.Discrete(2)
        self._seconds, self._shown = step_us / 1e6, np.zeros(SHAPE, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        return self._shown, {}

    def step(self, action: Any) -> Any:
        """Compute until the time is over."""
        until = time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            pass
        return self._shown, 0.0, False, False, {}


class OnDevice:
    """Policy that imitates a device which serves one process at a time.

    Args:
        path: File that the processes lock.
        milliseconds: Duration of a forward pass.
    """

    def __init__(self, path: str, milliseconds: float) -> None:
        self._path, self._seconds = path, milliseconds / 1e3

    def __call__(self, observations: Any) -> Any:
        """Return zeros after a forward pass, which excludes other processes."""
        with open(self._path) as device:
            fcntl.flock(device, fcntl.LOCK_EX)
            time.sleep(self._seconds)
        return np.zeros(len(observations), np.int64)


class Convolution(torch.nn.Module):
    """Small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 5, 2), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.ReLU(),
            torch.nn.Flatten(), torch.nn.LazyLinear(2),
        )  # fmt: skip
        self.layers(torch.zeros(1, *SHAPE))

    def act(self, observations: torch.Tensor) -> Any:
        """Return the index of the largest output for each observation."""
        return self.layers(observations).argmax(-1)


def rate(policy: Any, num_envs: int, central: bool) -> float:
    """Return the env steps per second of a pool, from the median duration of a rollout.

    Args:
        policy: Policy of the pool.
        num_envs: Number of sub-environments.
        central: Whether one worker runs inference for all sub-environments.
    """
    options = WorkerOptions(step_workers=PROCESSES if central else None)
    with AsyncWorkerPool(
        lambda: Busy(STEP_US),
        policy,
        num_envs=num_envs,
        num_workers=1 if central else PROCESSES,
        mode="sync",
        rollout_length=ROWS,
        workers=options,
    ) as pool:
        rollouts = iter(pool.rollouts())
        next(rollouts)
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            next(rollouts)
            times.append(time.perf_counter() - began)
        return ROWS * num_envs / statistics.median(times)


def compared(policy: Any) -> dict[str, Any]:
    """Measure local and centralized inference in turn, for each number of sub-environments."""
    found = {}
    for num_envs in ENVS:
        measures = {where: partial(rate, policy, num_envs, where == CENTRAL) for where in (LOCAL, CENTRAL)}
        found[f"{num_envs} sub-environments"] = summary(interleaved(measures, REPEATS, alternating=True), LOCAL)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.NamedTemporaryFile() as device:
        for milliseconds in FORWARDS_MS:
            keep("central", f"{milliseconds} ms on a device", compared(OnDevice(device.name, milliseconds)))
    keep("central", "convolutions on the CPU", compared(TorchPolicy(Convolution(), "act", ("actions",))))
