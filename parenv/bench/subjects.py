"""Subjects of a benchmark: costs of an environment and a policy, and systems whose env steps are compared."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import gymnasium as gym
from gymnasium import Space
from gymnasium.vector.utils import batch_space

from parenv.bench.environment import Environment, refused
from parenv.bench.measuring import Opened, Subject, grid, seconds_each
from parenv.errors import ConfigurationError
from parenv.memory.spaces import leaves, stacked
from parenv.memory.trees import as_array
from parenv.options import Mode
from parenv.policy.devices import on_device
from parenv.pool.pool import AsyncWorkerPool
from parenv.vector.env import ParallelVectorEnv
from parenv.worker.actor import Actor, check_actions

BATCHES = (1, 8, 64, 256)


def step_cost(environment: Environment) -> Subject:
    """Measure seconds per env step in this process, with random actions and without resets."""

    def open_one() -> Opened:
        env = environment.make()
        env.reset(seed=0)
        actions = [env.action_space.sample() for _ in range(64)]

        def measure(seconds: float) -> float:
            clock, step, spent, steps = time.perf_counter, env.step, 0.0, 0
            began = now = clock()
            deadline = began + seconds
            while True:
                _, _, terminated, truncated, _ = step(actions[steps % 64])
                steps += 1
                if terminated or truncated:
                    spent += clock() - began
                    env.reset()
                    began = now = clock()
                elif steps % 8 == 0 or steps < 8:
                    now = clock()
                if now >= deadline:
                    return (spent + now - began) / steps

        return Opened(measure, env.close)

    return Subject("env step", open_one)


def reset_cost(environment: Environment) -> Subject:
    """Measure seconds per reset in this process."""

    def open_one() -> Opened:
        env = environment.make()
        env.reset(seed=0)
        return Opened(lambda seconds: seconds_each(env.reset, seconds), env.close)

    return Subject("env reset", open_one)


def policy_cost(environment: Environment, policy: Any, batch: int) -> Subject:
    """Measure seconds per batch of observations for the policy, as in a worker with one thread."""

    def open_one() -> Opened:
        act = acting(environment, policy, batch)
        return Opened(one_thread()(lambda seconds: seconds_each(act, seconds)), lambda: None)

    return Subject(f"policy, batch {batch}", open_one)


def publish_cost(environment: Environment, policy: Any, num_workers: int) -> Subject:
    """Measure seconds from ``publish`` until all workers have loaded the weights."""

    def open_one() -> Opened:
        pool = AsyncWorkerPool(environment.make, policy, num_workers=num_workers, num_envs=num_workers, mode="sync")

        def publish() -> None:
            pool.publish(policy)
            pool.synchronize()

        return Opened(lambda seconds: seconds_each(publish, seconds), pool.close)

    return Subject(f"publish to {num_workers} worker{'s' * (num_workers > 1)}", open_one)


def acting(environment: Environment, policy: Any, batch: int) -> Callable[[], None]:
    """Return a function that acts once on a batch of random observations, as a worker does.

    Raises:
        ConfigurationError: The policy raises, or does not fit the environment.
    """
    space, of = environment.observation_space, leaves(environment.action_space)
    with refused(f"the agent cannot act on {batch} observations of {space}", but=ConfigurationError):
        actor = Actor(on_device(policy, "cpu"), leaves(space), of, "cpu")
        rows, carry = random_rows(space, batch), actor.initial_carry(batch)
        check_actions(of, environment.action_space, actor.actions.fitted(actor.act(rows, carry)[0], batch), batch)

    def act() -> None:
        nonlocal carry
        actions, extras, carry = actor.act(rows, carry)
        for values in (*actions, *extras.values()):
            as_array(values)

    return act


def random_rows(space: Space[Any], batch: int) -> list[Any]:
    """Return random observations by leaf: arrays ``[batch, ...]``, or lists if they have no fixed size."""
    space.seed(0)
    return stacked(leaves(space), [space.sample() for _ in range(batch)])


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Give torch one thread inside the block, as in a worker."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


REFERENCE = "SyncVectorEnv"
DEFAULT = "ParallelVectorEnv, default"
BATCHES_OF_ACTIONS = 32
PREFETCH = 1
POOL_WEIGHT = 2.0
"""Weight of a pool. Half of its time passes before and after the time that is measured."""


@dataclass(frozen=True)
class System:
    """One system of the comparison.

    Args:
        name: Name, such as ``"ParallelVectorEnv"``.
        num_envs: Number of sub-environments.
        num_workers: Number of worker processes. 0 steps in this process, ``None``: the system decides, such as a
            process per sub-environment.
        subject: Subject that measures env steps per second.
    """

    name: str
    num_envs: int
    num_workers: int | None
    subject: Subject


def vector_systems(environment: Environment, num_envs: int, num_workers: tuple[int, ...]) -> Iterator[System]:
    """Yield vector envs: Gymnasium's, parenv's by default and with each number of workers, and SB3's."""
    factories = [environment.make] * num_envs

    def system(name: str, workers: int | None, make: Callable[[], Any], forks: bool = False) -> System:
        def open_envs() -> Opened:
            envs = make()
            choice = str(envs.choice) if workers is None and isinstance(envs, ParallelVectorEnv) else ""
            return Opened(_stepping(envs, environment.action_space), envs.close, choice)

        return System(name, num_envs, workers, Subject(f"{name}, {num_envs} envs", open_envs, 1.0, forks))

    peers = [
        system(name, workers, partial(make, factories), workers is None) for name, workers, make in other_vector_envs()
    ]
    counts = (0, *(workers for _, workers in grid([num_envs], num_workers)))
    ours = [system(DEFAULT, None, partial(ParallelVectorEnv, factories))]
    ours += [system("ParallelVectorEnv", n, partial(ParallelVectorEnv, factories, num_workers=n)) for n in counts]
    if 0 < (fewer := max(1, max(counts) - 1)) < num_envs:  # The main process takes the place of one worker.
        make_ours = partial(ParallelVectorEnv, factories, num_workers=fewer, caller_steps=True)
        ours.append(system("ParallelVectorEnv, caller steps", fewer, make_ours))
    yield from (*peers[:2], *ours, *peers[2:])


def other_vector_envs() -> Iterator[tuple[str, int | None, Callable[..., Any]]]:
    """Yield the name, the number of workers and the class of each vector env of Gymnasium, and of SB3 if installed."""
    yield REFERENCE, 0, gym.vector.SyncVectorEnv
    yield "AsyncVectorEnv", None, _async_vector_env
    if find_spec("stable_baselines3") is not None:
        from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

        yield "SB3 DummyVecEnv", 0, DummyVecEnv
        yield "SB3 SubprocVecEnv", None, partial(SubprocVecEnv, start_method="fork")


def _async_vector_env(factories: Any) -> Any:
    envs: Any = gym.vector.AsyncVectorEnv(factories, context="fork")
    envs.close = partial(envs.close, terminate=True)  # A plain close() waits for a sub-environment that hangs.
    return envs


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
