"""Measurement of vector envs, and the upper bound: independent processes that do the same work."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from environments import factory
from guard import members

Measure = Callable[[float], float]
Close = Callable[[], object]


def sampled_actions(case: str, num_envs: int) -> Any:
    """Return 64 batches of actions ``[64, num_envs, ...]``, equal for all systems."""
    env = factory(case)()
    env.action_space.seed(0)
    actions = np.array([[env.action_space.sample() for _ in range(num_envs)] for _ in range(64)])
    env.close()
    return actions


def rate(advance: Callable[[int], int]) -> Measure:
    """Return a measurement of env steps per second.

    Args:
        advance: ``(number of the batch) -> env steps``, which steps one batch.
    """

    def measure(seconds: float) -> float:
        env_steps, count, began = 0, 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(4):
                env_steps += advance(count)
                count += 1
        return float(env_steps / (time.perf_counter() - began))

    return measure


def step_rate(step: Callable[[Any], object], actions: Any) -> Measure:
    """Return a measurement of env steps per second with one ``step`` after another.

    Args:
        step: Function that steps all sub-environments.
        actions: Batches of actions ``[64, num_envs, ...]``.
    """
    num_envs = actions.shape[1]

    def advance(count: int) -> int:
        step(actions[count % 64])
        return int(num_envs)

    return rate(advance)


def first_observation(
    make: Callable[[], Any], reset: Callable[[Any], object], close: Callable[[Any], object] = lambda made: made.close()
) -> tuple[Any, Close]:
    """Return a measurement of the time until the first observation, and of the memory of all processes.

    Modules are imported before. The memory includes the process that makes the vector env.

    Args:
        make: Function that makes a vector env or a sampler.
        reset: Function that waits for its first observation.
        close: Function that closes it.
    """
    made = []

    def measure(_: float) -> dict[str, float]:
        began = time.perf_counter()
        made.append(make())
        reset(made[0])
        seconds = time.perf_counter() - began
        processes = members(os.getpid())
        pss_mb = sum(process.memory_full_info().pss for process in processes) / 1e6
        return {"seconds": seconds, "processes": len(processes), "pss_mb": pss_mb}

    return measure, lambda: [close(one) for one in made]


def limit(case: str, num_envs: int, num_processes: int) -> tuple[Measure, Close]:
    """Measure the upper bound: independent processes that step and reset their sub-environments, and store nothing."""
    actions = sampled_actions(case, num_envs)
    pipes, processes = [], []
    for part in np.array_split(actions, num_processes, axis=1):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_bare_loop, args=(case, part, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)

    def measure(seconds: float) -> float:
        for pipe in pipes:
            pipe.send(seconds)
        return float(sum(pipe.recv() for pipe in pipes))

    return measure, lambda: [process.kill() for process in processes]


def _bare_loop(case: str, actions: Any, pipe: Any) -> None:
    envs = [factory(case)() for _ in range(actions.shape[1])]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    steps = [env.step for env in envs]
    while True:
        seconds, count, began = pipe.recv(), 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for i, action in enumerate(actions[count % 64]):
                _, _, terminated, truncated, _ = steps[i](action)
                if terminated or truncated:
                    envs[i].reset()
            count += 1
        pipe.send(count * len(envs) / (time.perf_counter() - began))
