"""The systems whose env steps per second are compared."""

from __future__ import annotations

import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector.utils import batch_space

from parenv.cli.environment import Environment
from parenv.cli.schedule import grid
from parenv.cli.subjects import Opened, Subject, seconds_each
from parenv.cli.systems import gymnasium, rllib, sb3, tianshou, torchrl
from parenv.options import Mode
from parenv.pool.pool import AsyncWorkerPool
from parenv.vector.env import ParallelVectorEnv

REFERENCE = "SyncVectorEnv"
BATCHES_OF_ACTIONS = 32
PREFETCH = 1
CALLER_STEPS = "caller steps"
POOL_WEIGHT = 2.0  # Half of it goes before the clock runs and after it has stopped.
Make = Callable[[Sequence[Callable[[], Any]]], Any]
LIBRARIES = (gymnasium, sb3, tianshou, torchrl)


@dataclass(frozen=True)
class System:
    """One system of the comparison.

    Args:
        name: such as ``"ParallelVectorEnv"``.
        num_envs: sub-environments.
        num_workers: worker processes; 0: in this process; ``None``: one for each sub-environment.
        subject: how it is measured, in env steps per second.
    """

    name: str
    num_envs: int
    num_workers: int | None
    subject: Subject


def vector_peers(start_method: str | None) -> Iterator[tuple[str, bool, Make]]:
    """Vector envs of libraries that are installed: names, whether they step in this process, and what makes them.

    Args:
        start_method: of multiprocessing, where one can be chosen.
    """
    for library in LIBRARIES:
        if is_installed(library.PACKAGE):
            for kind, in_process in library.KINDS.items():
                make = partial(library.make, kind, start_method=start_method)
                yield f"{library.NAME} {kind}".strip(), in_process, make


def is_installed(package: str) -> bool:
    """Whether it can be imported."""
    return importlib.util.find_spec(package) is not None


def vector_systems(environment: Environment, num_envs: int, num_workers: tuple[int, ...]) -> Iterator[System]:
    """Vector envs: Gymnasium's, parenv's with each number of workers, and those of other libraries."""
    factories = [environment.make] * num_envs

    def system(name: str, workers: int | None, make: Callable[[], Any]) -> System:
        def open_envs() -> Opened:
            envs = make()
            return Opened(_stepping(envs, environment.action_space), envs.close)

        return System(name, num_envs, workers, Subject(f"{name}, {num_envs} envs", open_envs, 1.0, workers is None))

    found = vector_peers("fork")
    peers = [system(name, 0 if in_process else None, partial(make, factories)) for name, in_process, make in found]
    counts = (0, *(workers for _, workers in grid([num_envs], num_workers)))
    ours = [system("ParallelVectorEnv", n, partial(ParallelVectorEnv, factories, num_workers=n)) for n in counts]
    if 0 < (beside := max(1, max(counts) - 1)) < num_envs:  # This process takes the place of one of the workers.
        make_ours = partial(ParallelVectorEnv, factories, num_workers=beside, caller_steps=True)
        ours.append(system(f"ParallelVectorEnv, {CALLER_STEPS}", beside, make_ours))
    first = len(gymnasium.KINDS)
    yield from (*peers[:first], *ours, *peers[first:])


def pool_system(
    environment: Environment, policy: Any, num_envs: int, num_workers: int, mode: Mode, rollout_length: int
) -> System:
    """An AsyncWorkerPool whose rollouts are looked at once and dropped."""
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
    """RLlib's env runners, with a policy like that of the pools by default."""

    def open_runners() -> Opened:
        return Opened(*rllib.open_runners(environment.make, num_envs, num_workers, rollout_length))

    name = f"RLlib env runners of {rllib.envs_of_a_runner(num_envs, num_workers)} envs"
    return System(name, num_envs, num_workers, Subject(f"{name}, {num_envs} envs", open_runners, 1.0))


def _stepping(envs: Any, action_space: gym.Space[Any]) -> Callable[[float], float]:
    batches = batch_space(action_space, envs.num_envs)
    batches.seed(0)
    actions = itertools.cycle([batches.sample() for _ in range(BATCHES_OF_ACTIONS)])
    envs.reset()
    return lambda seconds: envs.num_envs / seconds_each(lambda: envs.step(next(actions)), seconds)


def _collecting_rate(pool: AsyncWorkerPool, seconds: float, ahead: int) -> float:
    """Env steps per second of rollouts that are looked at and dropped.

    Args:
        pool: whose rollouts.
        seconds: how long.
        ahead: rollouts that each worker may have ready, or under way, without being asked.
    """
    stream, steps, each_worker = pool.rollouts(), 0, pool.num_workers if ahead else 1
    for _ in range(ahead * pool.num_workers + 1):  # What workers had ready before must not count.
        next(stream)
    began = time.perf_counter()
    while True:
        for _ in range(each_worker):  # Workers that are alike arrive together: whole rounds only, or the end decides.
            rollout = next(stream)
            rollout.rewards.sum()
            steps += rollout.num_steps
        elapsed = time.perf_counter() - began
        if elapsed >= seconds:
            break
    for _ in range(ahead + 1):  # Each waits for the rollout that is under way; the next measurement has the cores.
        pool.synchronize()
    return steps / elapsed
