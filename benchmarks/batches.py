"""Native vector envs: rollouts of a pool against a bare loop over the same vector env, in the same number of processes.

A bare loop acts by the same policy and keeps nothing. Both in turns, in pairs, so that what else the machine does
strikes both; the figure is the median of the ratios.

    python benchmarks/batches.py [--pairs 7] [--seconds 3] [--only cartpole]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from parenv import AsyncWorkerPool, WorkerOptions


def cartpoles() -> Any:
    return gym.make_vec("CartPole-v1", num_envs=4096, vectorization_mode="vector_entry_point").unwrapped


def pongs() -> Any:
    import envpool

    return envpool.make_gymnasium("Pong-v5", num_envs=8, num_threads=1)


def jax_cartpoles() -> Any:
    import gymnax
    from gymnax.wrappers.gym import GymnaxToVectorGymWrapper

    env, parameters = gymnax.make("CartPole-v1")
    envs: Any = GymnaxToVectorGymWrapper(env, num_envs=1024, params=parameters)
    envs.metadata = {**envs.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
    return envs


def lean(observations: Any) -> Any:
    return (np.asarray(observations)[:, 2] > 0).astype(np.int64)


def zeros(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


CASES: dict[str, tuple[str, Callable[[], Any], Any, int]] = {
    "cartpole": ("gymnasium", cartpoles, lean, 4096),
    "pong": ("envpool", pongs, zeros, 8),
    "gymnax": ("gymnax", jax_cartpoles, lean, 1024),
}
ROWS = 128


def bare(make: Any, policy: Any, batch: int, seconds: float) -> float:
    """Steps of sub-environments per second of a loop that does nothing else, resets among them."""
    with contextlib.closing(make()) as env:
        observations, _ = env.reset(seed=0)
        for _ in range(20):
            observations = env.step(policy(observations))[0]
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for _ in range(ROWS):
                observations = env.step(policy(observations))[0]
            steps += ROWS * batch
        return steps / (time.perf_counter() - began)


def pooled(make: Any, policy: Any, batch: int, seconds: float) -> float:
    """The same of a pool with one worker; a step that only resets is counted as it is in the bare loop."""
    options = WorkerOptions(start_method="spawn", start_timeout_s=300.0)
    with AsyncWorkerPool(make, policy, num_workers=1, rollout_length=ROWS, workers=options) as pool:
        rollouts = iter(pool.rollouts())
        for _ in range(3):
            next(rollouts)
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            steps += next(rollouts).rewards.size
        return steps / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", choices=CASES)
    arguments = parser.parse_args()
    for name, (library, make, policy, batch) in CASES.items():
        if arguments.only not in (None, name) or importlib.util.find_spec(library) is None:
            continue
        ratios, rates = [], []
        for _ in range(arguments.pairs):
            alone = bare(make, policy, batch, arguments.seconds)
            together = pooled(make, policy, batch, arguments.seconds)
            ratios.append(together / alone)
            rates.append((alone, together))
        alone, together = (statistics.median(column) for column in zip(*rates, strict=True))
        ratio = statistics.median(ratios)
        print(f"{name}, {batch}: bare {alone:,.0f} steps/s, pool {together:,.0f}, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
