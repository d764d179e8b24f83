"""Native vector envs: rollouts of a pool with one worker against a bare loop over the same vector env.

The loop acts by the same policy and keeps nothing; ``keeping`` copies observations and rewards into arrays of a
rollout, as whoever learns from them must. Those whose library is not installed are left out.

python benchmarks/batches.py
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from lib.common import interleaved, keep, summary

from parenv import AsyncWorkerPool, WorkerOptions

ROWS, REPEATS, SECONDS = 128, 5, 3.0
BARE = "bare loop"


def cartpoles() -> Any:
    """Of Gymnasium, in NumPy."""
    return gym.make_vec("CartPole-v1", num_envs=4096, vectorization_mode="vector_entry_point").unwrapped


def pongs() -> Any:
    """Of EnvPool, in C++."""
    import envpool

    return envpool.make_gymnasium("Pong-v5", num_envs=8, num_threads=1)


def jax_cartpoles() -> Any:
    """Of gymnax, in JAX."""
    import gymnax
    from gymnax.wrappers.gym import GymnaxToVectorGymWrapper

    env, parameters = gymnax.make("CartPole-v1")
    envs: Any = GymnaxToVectorGymWrapper(env, num_envs=4096, params=parameters)
    envs.metadata = {**envs.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
    return envs


def lean(observations: Any) -> Any:
    """To where the pole leans."""
    return (np.asarray(observations)[:, 2] > 0).astype(np.int64)


def zeros(observations: Any) -> Any:
    """Nothing."""
    return np.zeros(len(observations), np.int64)


CASES: dict[str, tuple[str, Callable[[], Any], Any]] = {
    "CartPole, 4096, Gymnasium": ("gymnasium", cartpoles, lean),
    "Pong, 8, EnvPool": ("envpool", pongs, zeros),
    "CartPole, 4096, gymnax": ("gymnax", jax_cartpoles, lean),
}


def bare(make: Any, policy: Any, keeping: bool) -> float:
    """Steps per second of a loop, those that only reset among them."""
    with contextlib.closing(make()) as env:
        observations = np.asarray(env.reset(seed=0)[0])
        kept = np.zeros((5, ROWS, *observations.shape), observations.dtype)
        rewards = np.zeros((5, ROWS, len(observations)), np.float32)
        began, steps, rollouts = 0.0, 0, 0
        while not began or time.perf_counter() - began < SECONDS:
            for row in range(ROWS):
                stepped = env.step(policy(observations))
                observations = stepped[0]
                if keeping:
                    kept[rollouts % 5, row], rewards[rollouts % 5, row] = observations, stepped[1]
            rollouts += 1
            if rollouts > 8:
                began, steps = began or time.perf_counter(), steps + ROWS * len(observations) * (began > 0)
        return steps / (time.perf_counter() - began)


def pooled(make: Any, policy: Any) -> float:
    """The same of a pool."""
    options = WorkerOptions(start_method="spawn", start_timeout_s=300.0)
    with AsyncWorkerPool(make, policy, num_workers=1, rollout_length=ROWS, workers=options) as pool:
        rollouts = iter(pool.rollouts())
        for _ in range(8):
            next(rollouts)
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < SECONDS:
            steps += next(rollouts).rewards.size
        return steps / (time.perf_counter() - began)


def measure(make: Any, policy: Any) -> Any:
    """All, interleaved."""
    measures = {
        BARE: lambda: bare(make, policy, keeping=False),
        "bare loop, keeping": lambda: bare(make, policy, keeping=True),
        "pool": lambda: pooled(make, policy),
    }
    return summary(interleaved(measures, REPEATS, alternating=True), BARE)


if __name__ == "__main__":
    for name, (library, make, policy) in CASES.items():
        if importlib.util.find_spec(library) is not None:
            keep("batches", name, measure(make, policy))
