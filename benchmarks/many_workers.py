"""Processor time of the main process by number of workers, for steps of a vector env and rollouts of a pool.

A step advances 120 CartPoles, and with 2 workers also 1,024 and 4,096. A rollout has 32 steps in 2 sub-environments
with almost free steps. The results are medians of measurements in turn.

python benchmarks/many_workers.py
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from driver import Still
from lib.common import save

from parenv import AsyncWorkerPool, ParallelVectorEnv

WORKERS, ROLLOUT_WORKERS = (1, 2, 4, 8, 15, 30, 64), (1, 4, 15)
MORE_ENVS = (1024, 4096)
NUM_ENVS, STEPS, ROUNDS, REPEATS, WARM_UPS = 120, 500, 60, 5, 50


def stepping(workers: int, num_envs: int = NUM_ENVS) -> dict[str, float]:
    """Step a vector env, and return microseconds of processor time and wake-ups of the main process, both per step."""
    factories, steps = [lambda: gym.make("CartPole-v1")] * num_envs, STEPS * NUM_ENVS // num_envs
    with contextlib.closing(ParallelVectorEnv(factories, num_workers=workers)) as envs:
        envs.reset(seed=0)
        actions = [envs.action_space.sample() for _ in range(64)]
        waits = _count_waits(envs)
        for step in range(WARM_UPS):
            envs.step(actions[step])
        waits[0], before = 0, time.process_time()
        for step in range(steps):
            envs.step(actions[step % 64])
        spent = time.process_time() - before
    return {"us per step": spent / steps * 1e6, "wake-ups per step": waits[0] / steps}


def _count_waits(envs: Any) -> list[int]:
    backend, count = envs._session.backend, [0]
    listen = backend.listen

    def counted(timeout_s: float) -> None:
        count[0] += 1
        listen(timeout_s)

    backend.listen = counted
    return count


def collecting(mode: Any, workers: int) -> dict[str, float]:
    """Take rollouts of a pool, and return microseconds of the main thread per rollout of a worker."""
    with AsyncWorkerPool(
        Still, _zeros, num_envs=2 * workers, num_workers=workers, rollout_length=32, mode=mode
    ) as pool:
        stream, per_round = pool.rollouts(), 1 if mode == "sync" else workers
        for _ in range(10 * per_round):
            next(stream)
        before = time.thread_time()
        for _ in range(ROUNDS * per_round):
            next(stream)
        return {"us per worker's rollout": (time.thread_time() - before) / ROUNDS / workers * 1e6}


def _zeros(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


def medians(measures: dict[str, Callable[[], dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Measure all cases in turn, several times, and return medians by case and key."""
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in measures}
    for _ in range(REPEATS):
        for name, measure in measures.items():
            for key, value in measure().items():
                found[name][key].append(value)
    return {name: {key: statistics.median(values) for key, values in of.items()} for name, of in found.items()}


if __name__ == "__main__":
    measures = {f"step, {workers} workers": partial(stepping, workers) for workers in WORKERS}
    measures |= {f"step of {num_envs}, 2 workers": partial(stepping, 2, num_envs) for num_envs in MORE_ENVS}
    for mode in ("sync", "async"):
        measures |= {f"{mode}, {workers} workers": partial(collecting, mode, workers) for workers in ROLLOUT_WORKERS}
    save("many_workers", medians(measures))
