"""bench: what an environment, a policy and the ways to run them in parallel cost on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenv.argument_checks import at_least, positive
from parenv.cli.agent import RandomNetwork, agent_by
from parenv.cli.bench_report import BenchReport, Throughput
from parenv.cli.environment import Environment, tried_out
from parenv.cli.machine import machine
from parenv.cli.measuring import Found, interleaved
from parenv.cli.schedule import grid, rollout_length, worker_counts
from parenv.cli.subjects import BATCHES, acting, policy_cost, publish_cost, reset_cost, seconds_each, step_cost
from parenv.cli.systems import rllib
from parenv.cli.systems.compared import POOL_WEIGHT, System, pool_system, rllib_system, vector_systems
from parenv.errors import ConfigurationError
from parenv.memory.spaces import leaves
from parenv.options import Mode
from parenv.policy.snapshots import flat_layout, module_of
from parenv.process.cores import usable_cores

MODES: tuple[Mode, Mode] = ("sync", "async")


@dataclass(frozen=True)
class Progress:
    """How far a benchmark is.

    Args:
        doing: what comes next, in words.
        repeat: which round of measurements, from 1; 0 while systems start.
        repeats: how many there are.
        throughput: what has been found so far.
    """

    doing: str
    repeat: int
    repeats: int
    throughput: tuple[Throughput, ...]


def bench(
    env: Any,
    *,
    agent: Any = None,
    seconds: float = 60.0,
    num_envs: Sequence[int] = (8, 64),
    num_workers: Sequence[int] | None = None,
    repeats: int = 5,
    pool: bool = True,
    watch: Callable[[Progress], object] = lambda progress: None,
) -> BenchReport:
    """Measure an environment's costs, a policy's, and the env steps per second of vector envs and pools.

    Everything is measured in turn, ``repeats`` times. Vector envs step with random actions, the same for all; in
    Gymnasium's default autoreset mode, as here, a reset counts as a step. Pools act with the policy on their workers,
    and so do more per env step. What fails is in the report with its failure.

    Args:
        env: an env id, ``"module:factory"``, or a callable that makes an environment.
        agent: the policy of the pools: what :class:`~parenv.AsyncWorkerPool` takes, or the ``"module:factory"`` that
            makes such, alone or as the first part of an :class:`~parenv.cli.agent.Agent`; by default an MLP with two
            hidden layers of 64.
        seconds: that measuring takes, roughly; starting the systems comes on top.
        num_envs: numbers of sub-environments.
        num_workers: numbers of worker processes; by default 1, 2, 4, ... up to the cores that may be used.
        repeats: measurements of each.
        pool: whether pools and the policy are measured too.
        watch: is told before each step.

    Raises:
        ConfigurationError: an argument is wrong, or the environment or the policy does not run; nothing has been
            started.

    >>> report = bench("CartPole-v1", seconds=0.2, num_envs=[2], num_workers=[1], repeats=1, pool=False)
    >>> sorted(report.costs_s)
    ['env reset', 'env step']
    """
    num_workers = worker_counts(usable_cores()) if num_workers is None else num_workers
    _check(seconds, num_envs, num_workers, repeats)
    facts, began = machine(), time.monotonic()
    environment = tried_out(env)
    policy = _policy(agent, environment) if pool else None
    costs = [step_cost(environment), reset_cost(environment)]
    systems = [system for n in sorted(set(num_envs)) for system in vector_systems(environment, n, tuple(num_workers))]
    pairs = grid(num_envs, num_workers) if pool else []
    if pool:
        act_s = seconds_each(acting(environment, policy, max(num_envs)), 0.0)
        costs += [policy_cost(environment, policy, batch) for batch in BATCHES]
        costs.append(publish_cost(environment, policy, max(num_workers)))
    weight = sum(subject.weight for subject in (*costs, *(system.subject for system in systems)))
    slice_s = seconds / repeats / (weight + POOL_WEIGHT * len(MODES) * len(pairs))  # For a measurement of weight 1.
    for n, workers in pairs:
        length = rollout_length(-(-n // workers) * (environment.step_s + act_s / max(num_envs)), slice_s)
        systems += [pool_system(environment, policy, n, workers, mode, length) for mode in MODES]
    if rllib.is_installed() and pairs:  # One cluster in a process: only the largest.
        systems.append(rllib_system(environment, *pairs[-1], length))

    def tell(doing: str, repeat: int, found: Sequence[Found]) -> None:
        watch(Progress(doing, repeat, repeats, _throughput(systems, found[len(costs) :])))

    found = interleaved([*costs, *(system.subject for system in systems)], repeats, slice_s, tell)
    found_costs = {cost.name: one for cost, one in zip(costs, found, strict=False)}
    return BenchReport(
        environment=environment.name,
        machine=facts,
        repeats=repeats,
        slice_s=slice_s,
        seconds=time.monotonic() - began,
        costs_s={name: one.spread for name, one in found_costs.items() if one.spread is not None},
        sizes_bytes=_sizes(environment, policy) if pool else {},
        throughput=_throughput(systems, found[len(costs) :]),
        cost_failures={name: one.failure for name, one in found_costs.items() if one.failure is not None},
    )


def _check(seconds: float, num_envs: Sequence[int], num_workers: Sequence[int], repeats: int) -> None:
    at_least("repeats", repeats, 1)
    positive("seconds", seconds)
    for name, values in (("num_envs", num_envs), ("num_workers", num_workers)):
        if not values:
            raise ConfigurationError(f"{name} is empty: give at least one number")
        for value in values:
            at_least(name, value, 1)


def _policy(agent: Any, environment: Environment) -> Any:
    if agent is not None:
        return agent_by(agent).policy if isinstance(agent, str) else agent
    try:
        return RandomNetwork(environment.observation_space, environment.action_space)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}, or compare vector envs only, with pool=False or --no-pool") from error


def _sizes(environment: Environment, policy: Any) -> dict[str, float]:
    module = module_of(policy)
    spaces = (environment.observation_space, environment.action_space)
    fields = sum(leaf.nbytes for space in spaces for leaf in leaves(space))
    reward_and_flags = np.dtype(np.float32).itemsize + 2 * np.dtype(np.bool_).itemsize
    return {
        "weights": 0 if module is None else flat_layout(module)[1],
        "rollout, per env step": fields + reward_and_flags,
    }


def _throughput(systems: Sequence[System], found: Sequence[Found]) -> tuple[Throughput, ...]:
    return tuple(
        Throughput(system.name, system.num_envs, system.num_workers, one.spread, one.failure)
        for system, one in zip(systems, found, strict=True)
    )
