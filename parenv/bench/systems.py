"""Systems whose env steps per second are compared: vector envs, pools and env runners."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium as gym
from gymnasium.vector.utils import batch_space

from parenv.bench import other_libraries
from parenv.bench.environment import Environment
from parenv.bench.measuring import Opened, Subject, grid, seconds_each
from parenv.options import Mode
from parenv.pool.pool import AsyncWorkerPool
from parenv.vector.env import ParallelVectorEnv

REFERENCE = "SyncVectorEnv"
BATCHES_OF_ACTIONS = 32
PREFETCH = 1
POOL_WEIGHT = 2.0
"""Weight of a pool. Half of its time passes before and after the time that is measured."""
GYMNASIUMS = 2
"""Number of Gymnasium's vector envs, which come first."""


@dataclass(frozen=True)
class System:
    """One system of the comparison.

    Args:
        name: Name, such as ``"ParallelVectorEnv"``.
        num_envs: Number of sub-environments.
        num_workers: Number of worker processes. 0 steps in this process, ``None`` has a process per sub-environment.
        subject: Subject that measures env steps per second.
    """

    name: str
    num_envs: int
    num_workers: int | None
    subject: Subject


def vector_systems(environment: Environment, num_envs: int, num_workers: tuple[int, ...]) -> Iterator[System]:
    """Yield vector envs: Gymnasium's, parenv's with each number of workers, and those of other libraries."""
    factories = [environment.make] * num_envs

    def system(name: str, workers: int | None, make: Callable[[], Any]) -> System:
        def open_envs() -> Opened:
            envs = make()
            return Opened(_stepping(envs, environment.action_space), envs.close)

        return System(name, num_envs, workers, Subject(f"{name}, {num_envs} envs", open_envs, 1.0, workers is None))

    found = other_libraries.vector_peers("fork")
    peers = [system(name, 0 if in_process else None, partial(make, factories)) for name, in_process, make in found]
    counts = (0, *(workers for _, workers in grid([num_envs], num_workers)))
    ours = [system("ParallelVectorEnv", n, partial(ParallelVectorEnv, factories, num_workers=n)) for n in counts]
    if 0 < (fewer := max(1, max(counts) - 1)) < num_envs:  # The main process takes the place of one worker.
        make_ours = partial(ParallelVectorEnv, factories, num_workers=fewer, caller_steps=True)
        ours.append(system("ParallelVectorEnv, caller steps", fewer, make_ours))
    yield from (*peers[:GYMNASIUMS], *ours, *peers[GYMNASIUMS:])


def pool_system(
    environment: Environment, policy: Any, num_envs: int, num_workers: int, mode: Mode, rollout_length: int
) -> System:
    """Return a pool whose rollouts are read once and dropped."""
    name = f"AsyncWorkerPool, {mode}"

    def open_pool() -> Opened:
        pool = AsyncWorkerPool(
            environment.make,
            policy,
            num_envs=num_envs,
            num_workers=num_workers,
            mode=mode,
            rollout_length=rollout_length,
            prefetch=PREFETCH,
        )
        ahead = PREFETCH + 1 if mode == "async" else 0
        return Opened(lambda seconds: _collecting_rate(pool, seconds / POOL_WEIGHT, ahead), pool.close)

    subject = Subject(f"{name}, {num_envs} envs", open_pool, POOL_WEIGHT)
    return System(name, num_envs, num_workers, subject)


def rllib_system(environment: Environment, num_envs: int, num_workers: int, rollout_length: int) -> System:
    """Return RLlib's env runners, with a policy like the default policy of the pools."""

    def open_runners() -> Opened:
        return Opened(*other_libraries.open_rllib(environment.make, num_envs, num_workers, rollout_length))

    name = f"RLlib env runners of {other_libraries.envs_of_a_runner(num_envs, num_workers)} envs"
    return System(name, num_envs, num_workers, Subject(f"{name}, {num_envs} envs", open_runners, 1.0))


def _stepping(envs: Any, action_space: gym.Space[Any]) -> Callable[[float], float]:
    batches = batch_space(action_space, envs.num_envs)
    batches.seed(0)
    actions = itertools.cycle([batches.sample() for _ in range(BATCHES_OF_ACTIONS)])
    envs.reset()
    return lambda seconds: envs.num_envs / seconds_each(lambda: envs.step(next(actions)), seconds)


def _collecting_rate(pool: AsyncWorkerPool, seconds: float, ahead: int) -> float:
    """Return the env steps per second of a loop that reads rollouts and drops them.

    Args:
        pool: Pool that collects.
        seconds: Approximate duration, in seconds.
        ahead: Number of rollouts that each worker collects ahead of the loop.
    """
    stream, steps, each_worker = pool.rollouts(), 0, pool.num_workers if ahead else 1
    for _ in range(ahead * pool.num_workers + 1):  # Rollouts that were collected before must not count.
        next(stream)
    began = perf_counter()
    while True:
        # Workers of equal speed deliver together. A part of a round would make the rate depend on where it ends.
        for _ in range(each_worker):
            rollout = next(stream)
            rollout.rewards.sum()
            steps += rollout.num_steps
        elapsed = perf_counter() - began
        if elapsed >= seconds:
            break
    for _ in range(ahead + 1):  # Each call waits for one rollout in progress, so that the next system has all cores.
        pool.synchronize()
    return steps / elapsed
