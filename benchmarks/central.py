"""One forward for all against one in every worker: local against ``WorkerOptions(step_workers=)``.

The policy is a forward on a device that serves one at a time, as a GPU does: it takes a lock and sleeps, so many
milliseconds whatever the number of rows; or a real convolution net on the CPU, which every worker has a core for.

    python benchmarks/central.py [--processes 4] [--rounds 3] [--step-us 200]
"""

from __future__ import annotations

import argparse
import fcntl
import statistics
import tempfile
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from parenv import AsyncWorkerPool, TorchPolicy, WorkerOptions
from parenv.advice import forward_place

FORWARDS_MS = (0.1, 1.0, 5.0, 20.0)
ENVS = (8, 16, 32, 64)
SHAPE = (1, 32, 32)
ROWS = 16


class Busy(gym.Env[Any, Any]):
    """Computes for so long in every step."""

    def __init__(self, step_us: float) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(0, 1, SHAPE), gym.spaces.Discrete(2)
        self._seconds, self._shown = step_us / 1e6, np.zeros(SHAPE, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin."""
        return self._shown, {}

    def step(self, action: Any) -> Any:
        """Compute."""
        until = time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            pass
        return self._shown, 0.0, False, False, {}


class OnDevice:
    """A forward on a device that serves one at a time."""

    def __init__(self, path: str, milliseconds: float) -> None:
        self._path, self._seconds = path, milliseconds / 1e3

    def __call__(self, observations: Any) -> Any:
        """Act, alone."""
        with open(self._path) as device:
            fcntl.flock(device, fcntl.LOCK_EX)
            time.sleep(self._seconds)
        return np.zeros(len(observations), np.int64)


class Convolution(torch.nn.Module):
    """A small one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 5, 2), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.ReLU(),
            torch.nn.Flatten(), torch.nn.LazyLinear(2),
        )  # fmt: skip
        self.layers(torch.zeros(1, *SHAPE))

    def act(self, observations: torch.Tensor) -> Any:
        """The best actions."""
        return self.layers(observations).argmax(-1)


def rate(policy: Any, num_envs: int, processes: int, step_us: float, central: bool, rounds: int) -> float:
    """Env steps per second."""
    options = WorkerOptions(step_workers=processes if central else None)
    with AsyncWorkerPool(
        lambda: Busy(step_us),
        policy,
        num_envs=num_envs,
        num_workers=1 if central else processes,
        mode="sync",
        rollout_length=ROWS,
        workers=options,
    ) as pool:
        rollouts = iter(pool.rollouts())
        next(rollouts)
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            next(rollouts)
            times.append(time.perf_counter() - began)
        return ROWS * num_envs / statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-us", type=float, default=200.0)
    arguments = parser.parse_args()
    about = arguments.processes, arguments.step_us
    with tempfile.NamedTemporaryFile() as device:
        cases = [(f"device {ms} ms", OnDevice(device.name, ms), ms / 1e3, True) for ms in FORWARDS_MS]
        cases.append(("convolution on the CPU", TorchPolicy(Convolution(), "act", ("actions",)), 0.0, False))
        for name, policy, seconds, is_shared in cases:
            for num_envs in ENVS:
                local, central = (rate(policy, num_envs, *about, where, arguments.rounds) for where in (False, True))
                measured = "central" if central > local else "local"
                rows = (num_envs // arguments.processes, num_envs // 2)
                own_s, half_s = (seconds if is_shared else timed(policy, count) for count in rows)
                advised = forward_place(own_s, half_s, arguments.processes, is_shared=is_shared)
                print(
                    f"{name}, {num_envs} envs: local {local:,.0f} steps/s, central {central:,.0f}: {measured}, "
                    f"advised {advised}",
                    flush=True,
                )


def timed(policy: Any, rows: int) -> float:
    """Seconds of one forward of the convolution net."""
    observations = torch.zeros(rows, *SHAPE)
    times = []
    with torch.inference_mode():
        for _ in range(20):
            began = time.perf_counter()
            policy.module.act(observations)
            times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
