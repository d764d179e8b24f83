"""Subjects: what a benchmark measures, each opened once and measured again and again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from gymnasium import Space

from parenv.cli.environment import Environment, refused
from parenv.errors import ConfigurationError
from parenv.memory.spaces import leaves, stacked
from parenv.memory.trees import as_array
from parenv.policy.devices import on_device
from parenv.pool.pool import AsyncWorkerPool
from parenv.worker.acting import Actor, check_actions

BATCHES = (1, 8, 64, 256)


class Opened(NamedTuple):
    """A subject that is ready.

    Args:
        measure: ``(seconds) -> figure``, which takes about that long.
        close: ends what was started.
    """

    measure: Callable[[float], float]
    close: Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """Something to measure.

    Args:
        name: what.
        open: makes it ready.
        weight: how much time it needs, in measurements of a vector env.
        forks: whether opening it forks this process, which must come before anything has threads.
    """

    name: str
    open: Callable[[], Opened]
    weight: float = 0.25
    forks: bool = False


def step_cost(environment: Environment) -> Subject:
    """Seconds per env step in this process, random actions, resets apart."""

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
    """Seconds per reset in this process."""

    def open_one() -> Opened:
        env = environment.make()
        env.reset(seed=0)
        return Opened(lambda seconds: seconds_each(env.reset, seconds), env.close)

    return Subject("env reset", open_one)


def policy_cost(environment: Environment, policy: Any, batch: int) -> Subject:
    """Seconds for acting on a batch of observations, as a worker does it, with one thread."""

    def open_one() -> Opened:
        act = acting(environment, policy, batch)
        return Opened(one_thread()(lambda seconds: seconds_each(act, seconds)), lambda: None)

    return Subject(f"policy, batch {batch}", open_one)


def publish_cost(environment: Environment, policy: Any, num_workers: int) -> Subject:
    """Seconds from ``publish`` until all workers have loaded the weights."""

    def open_one() -> Opened:
        pool = AsyncWorkerPool(environment.make, policy, num_workers=num_workers, num_envs=num_workers, mode="sync")

        def publish() -> None:
            pool.publish(policy)
            pool.synchronize()

        return Opened(lambda seconds: seconds_each(publish, seconds), pool.close)

    return Subject(f"publish to {num_workers} workers" if num_workers > 1 else "publish to 1 worker", open_one)


def acting(environment: Environment, policy: Any, batch: int, device: str = "cpu") -> Callable[[], None]:
    """What acts once on a batch of random observations, as a worker does it whose policy is on this device.

    Raises:
        ConfigurationError: the policy raises, or does not fit the environment.
    """
    space, of = environment.observation_space, leaves(environment.action_space)
    with refused(f"the agent cannot act on {batch} observations of {space}", but=ConfigurationError):
        actor = Actor(on_device(policy, device), leaves(space), of, device)
        rows, carry = random_rows(space, batch), actor.initial_carry(batch)
        check_actions(of, environment.action_space, actor.actions.fitted(actor.act(rows, carry)[0], batch), batch)

    def act() -> None:
        nonlocal carry
        actions, extras, carry = actor.act(rows, carry)
        for values in (*actions, *extras.values()):
            as_array(values)

    return act


def random_rows(space: Space[Any], batch: int) -> list[Any]:
    """Random observations by leaf: arrays ``[batch, ...]``, or lists where they have no fixed size."""
    space.seed(0)
    return stacked(leaves(space), [space.sample() for _ in range(batch)])


def seconds_each(work: Callable[[], object], seconds: float) -> float:
    """Mean seconds of something, done again and again for so long, at least once."""
    count, began = 0, time.perf_counter()
    while True:
        work()
        count += 1
        elapsed = time.perf_counter() - began
        if elapsed >= seconds:
            return elapsed / count


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """While something is measured, torch has one thread, as in a worker."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
