"""Benchmark: costs of an environment and a policy, and speed of the ways to run them in parallel."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from parenv.argument_checks import at_least, positive
from parenv.bench.agent import RandomNetwork, policy_by
from parenv.bench.environment import Environment, tried_out
from parenv.bench.measuring import (
    LEAST_SHARE,
    Found,
    Spread,
    grid,
    interleaved,
    machine,
    rollout_length,
    seconds_each,
    worker_counts,
)
from parenv.bench.subjects import (
    BATCHES,
    POOL_WEIGHT,
    System,
    acting,
    policy_cost,
    pool_system,
    publish_cost,
    reset_cost,
    step_cost,
    vector_systems,
)
from parenv.errors import ConfigurationError
from parenv.memory.spaces import leaves
from parenv.options import Mode
from parenv.policy.snapshots import flat_layout, module_of
from parenv.process.cores import usable_cores

MODES: tuple[Mode, Mode] = ("sync", "async")
ADVISE_IS_BENCH = "is deprecated and runs bench. For the bottleneck of a training loop, print pool.advice()."


@dataclass(frozen=True)
class Throughput:
    """Env steps per second of one system.

    Args:
        system: Name of the system, such as ``"ParallelVectorEnv"``.
        num_envs: Number of sub-environments.
        num_workers: Number of worker processes. 0 steps in this process, ``None``: the system decides, such as a
            process per sub-environment.
        env_steps_per_second: Summary of the measurements, or ``None`` if nothing was measured.
        failure: Error in one line, or ``None``.
        choice: Setting that the system has chosen and the reason, in one line, or empty.
    """

    system: str
    num_envs: int
    num_workers: int | None
    env_steps_per_second: Spread | None
    failure: str | None = None
    choice: str = ""


@dataclass(frozen=True)
class Progress:
    """Progress of a benchmark.

    Args:
        doing: Next step.
        repeat: Number of the repeat, from 1. 0 while systems start.
        repeats: Number of repeats.
        throughput: Measurements so far.
    """

    doing: str
    repeat: int
    repeats: int
    throughput: tuple[Throughput, ...]


@dataclass(frozen=True)
class BenchReport:
    """Result of :func:`bench`.

    Args:
        environment: Name of the environment.
        machine: Facts about the machine, see :func:`parenv.bench.measuring.machine`.
        repeats: Number of measurements of each subject.
        slice_s: Mean duration of a measurement of a vector env, in seconds.
        seconds: Duration of the benchmark, in seconds.
        costs_s: Seconds of one ``"env step"``, ``"env reset"``, ``"policy, batch 8"`` and ``"publish to 2 workers"``.
            The last one ends when all workers have loaded the weights.
        sizes_bytes: Bytes of ``"weights"`` and of ``"rollout, per env step"``. Empty without pools.
        throughput: Env steps per second of all systems.
        cost_failures: Errors of costs that are missing in ``costs_s``, in one line each.
    """

    environment: str
    machine: Mapping[str, Any]
    repeats: int
    slice_s: float
    seconds: float
    costs_s: Mapping[str, Spread]
    sizes_bytes: Mapping[str, float]
    throughput: tuple[Throughput, ...]
    cost_failures: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> BenchReport:
        """Return the report that :meth:`to_json` has written.

        Raises:
            KeyError, TypeError, ValueError: The text is not such a report.
        """
        content = json.loads(text)
        content["costs_s"] = {name: Spread(**cost) for name, cost in content["costs_s"].items()}
        for one in content["throughput"]:
            one["env_steps_per_second"] = (rate := one["env_steps_per_second"]) and Spread(**rate)
        content["throughput"] = tuple(Throughput(**one) for one in content["throughput"])
        return cls(**content)


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
    """Measure the costs of an environment and a policy, and the env steps per second of vector envs and pools.

    All subjects are measured in turn, ``repeats`` times. Vector envs step with the same random actions, and a reset
    counts as a step, as in Gymnasium's default autoreset mode. Pools run the policy in addition, so that an env step
    takes longer. A subject that fails is in the report with its error.

    Args:
        env: Env id, ``"module:factory"``, or a callable that makes an environment.
        agent: Policy of the pools, as :class:`~parenv.AsyncWorkerPool` takes it, or a ``"module:factory"`` that makes
            it. If the factory returns a tuple, its first item is the policy. Default: an MLP with two hidden layers
            of 64.
        seconds: Approximate duration of the whole benchmark, in seconds. It takes longer if starting and closing all
            systems leave less than a quarter of it for the measurements.
        num_envs: Numbers of sub-environments.
        num_workers: Numbers of worker processes. Default: 1, 2, 4, ... up to the number of usable cores.
        repeats: Number of measurements of each subject.
        pool: Whether to measure pools and the policy.
        watch: Function that is called before each step.

    Raises:
        ConfigurationError: An argument is wrong, or the environment or the policy does not run. No process has been
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
    weight += POOL_WEIGHT * len(MODES) * len(pairs)
    slice_s = LEAST_SHARE * seconds / repeats / weight  # At least, for a measurement of weight 1.
    for n, workers in pairs:
        length = rollout_length(-(-n // workers) * (environment.step_s + act_s / max(num_envs)), slice_s)
        systems += [pool_system(environment, policy, n, workers, mode, length) for mode in MODES]

    def tell(doing: str, repeat: int, found: Sequence[Found]) -> None:
        watch(Progress(doing, repeat, repeats, _throughput(systems, found[len(costs) :])))

    subjects = [*costs, *(system.subject for system in systems)]
    found = interleaved(subjects, repeats, seconds - (time.monotonic() - began), tell)
    measured = sum(subject.weight * len(one.values) for subject, one in zip(subjects, found, strict=True))
    found_costs = {cost.name: one for cost, one in zip(costs, found, strict=False)}
    return BenchReport(
        environment=environment.name,
        machine=facts,
        repeats=repeats,
        slice_s=sum(one.measured_s for one in found) / max(measured, 1.0),
        seconds=time.monotonic() - began,
        costs_s={name: one.spread for name, one in found_costs.items() if one.spread is not None},
        sizes_bytes=_sizes(environment, policy) if pool else {},
        throughput=_throughput(systems, found[len(costs) :]),
        cost_failures={name: one.failure for name, one in found_costs.items() if one.failure is not None},
    )


def advise(env: Any, *, agent: Any = None, seconds: float = 15.0, **former: Any) -> BenchReport:
    """Measure an environment with :func:`bench`. Other arguments have no effect.

    .. deprecated:: 0.3
        Use :func:`bench` for an environment, and :meth:`parenv.AsyncWorkerPool.advice` for a training loop.
    """
    warnings.warn(f"parenv.bench.advise {ADVISE_IS_BENCH}", DeprecationWarning, stacklevel=2)
    return bench(env, agent=None if agent is None else policy_by(agent), seconds=seconds)


def _check(seconds: float, num_envs: Sequence[int], num_workers: Sequence[int], repeats: int) -> None:
    at_least("repeats", repeats, 1)
    positive("seconds", seconds)
    for name, values in (("num_envs", num_envs), ("num_workers", num_workers)):
        if not values:
            raise ConfigurationError(f"{name} must contain at least one number, got {values!r}")
        for value in values:
            at_least(name, value, 1)


def _policy(agent: Any, environment: Environment) -> Any:
    if agent is not None:
        return policy_by(agent) if isinstance(agent, str) else agent
    try:
        return RandomNetwork(environment.observation_space, environment.action_space)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error} Or compare vector envs only, with pool=False or --no-pool.") from error


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
        Throughput(system.name, system.num_envs, system.num_workers, one.spread, one.failure, one.choice)
        for system, one in zip(systems, found, strict=True)
    )
