"""Facts about an accelerated run: whether it will be slower, the parts of its time, and what is left to gain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from parenv.advice import (
    LARGE,
    NOTABLE,
    Fact,
    gain_in_words,
    gain_without,
    in_lines,
    in_seconds,
    in_steps,
    time_facts,
)
from parenv.envs.step_cost import StepCost
from parenv.errors import ConfigurationError
from parenv.process.cores import usable_cores
from parenv.vector.choice import Demand, step_s

OVERHEAD_S = 1e-4
"""Estimate of the seconds by which a step of all environments takes longer on workers, beside the wake-ups: messages
of a rollout, and the replay of its steps. ``benchmarks/sb3_accelerate.py`` has cases on both sides of it."""
CERTAIN = 1.5
"""Smallest ratio of waiting to the steps of the environments that counts. A ``DummyVecEnv`` takes time of its own."""


def why_slower(num_envs: int, num_workers: int, env_step_s: float, cores: int | None = None) -> str:
    """Return why a run in sync mode will be slower on workers than in this process, or an empty text if it will not.

    Args:
        num_envs: Number of environments.
        num_workers: Number of workers, at least 1.
        env_step_s: Seconds of a step of one environment.
        cores: Number of cores. Default: those that this process may use.

    >>> print(why_slower(8, 2, 6e-6, cores=2))
    a step of all 8 environments takes 48 µs in this process, and about 200 µs on 2 workers
    >>> why_slower(64, 2, 6e-6, cores=2)
    ''
    """
    cores, cost = usable_cores() if cores is None else cores, StepCost(env_step_s, 0.0, 0.0, queued=0.0, others=0.0)
    demand = Demand(num_envs, num_workers, num_workers, False, "", cores, math.inf)
    here_s = step_s(demand, cost, 0, False)
    there_s = step_s(demand, cost, num_workers, False) + OVERHEAD_S
    if here_s >= there_s:
        return ""
    workers = f"{num_workers} worker{'s' * (num_workers > 1)}"
    return (
        f"a step of all {num_envs} environments takes {in_seconds(here_s)} in this process, and about "
        f"{in_seconds(round(there_s, 4))} on {workers}"
    )


@dataclass(frozen=True)
class RunCosts:
    """Times of an accelerated run.

    Args:
        num_envs: Number of environments.
        num_workers: Number of workers. With 0, the main process steps the environments.
        mode: ``"sync"`` or ``"async"``.
        off_policy: Whether the model supports both modes.
        steps: Number of steps that all environments have made together.
        waiting_s: Seconds for which the model has waited for environments.
        collecting_s: Seconds of the model in ``collect_rollouts``, waiting included.
        learning_s: Seconds of the model in ``train``.
        env_step_s: Seconds of a step of one environment in one process, measured before the run. ``None`` if workers
            act or there are none.

    >>> RunCosts(16, 2, "sync", False, 1000, 3.0, 4.0, 4.0).shares
    {'waiting for environments': 0.375, 'acting and storing': 0.125, 'learning': 0.5}
    """

    num_envs: int
    num_workers: int
    mode: str
    off_policy: bool
    steps: int
    waiting_s: float
    collecting_s: float
    learning_s: float
    env_step_s: float | None = None

    @property
    def storing_s(self) -> float:
        """Seconds in ``collect_rollouts`` without waiting: acting by the model, wrappers, callbacks and the buffer."""
        return max(0.0, self.collecting_s - self.waiting_s)

    @property
    def total_s(self) -> float:
        """Seconds of all parts together."""
        return self.waiting_s + self.storing_s + self.learning_s

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds of the model, by part."""
        return {
            "waiting for environments": self.waiting_s,
            "acting and storing": self.storing_s,
            "learning": self.learning_s,
        }

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the model's time, by part."""
        return {name: seconds / (self.total_s or 1.0) for name, seconds in self.seconds.items()}

    @property
    def in_process_s(self) -> float:
        """Seconds that a step of all environments would take in this process; 0 if they were not measured."""
        return (self.env_step_s or 0.0) * self.num_envs


@dataclass(frozen=True)
class RunAdvice:
    """Facts about an accelerated run.

    Args:
        costs: Times of the run.
        obstacle: Reason why the model is not accelerated. Empty: it is.

    Raises:
        ConfigurationError: The model has not learned yet.

    >>> print(RunAdvice(RunCosts(16, 2, "sync", True, 1000, 3.0, 4.0, 4.0)))
    16 environments in 2 workers, sync: 2,000 env steps/s
    time of the model
      waiting for environments  3 ms per step of all environments  38%  try mode='async'
      acting and storing        1 ms per step of all environments  12%
      learning                  4 ms per step of all environments  50%
    without any waiting for environments, the run would be at most 1.6 times as fast
    >>> RunAdvice(RunCosts(8, 2, "sync", False, 1000, 0.3, 0.5, 0.1, env_step_s=1e-5)).is_slower
    True
    """

    costs: RunCosts
    obstacle: str = ""

    def __post_init__(self) -> None:
        if not self.obstacle and not (self.costs.steps and self.costs.learning_s):
            raise ConfigurationError("advice() needs a model that has learned. Call model.learn(...) first.")

    @property
    def env_steps_per_second(self) -> float:
        """Env steps per second of all environments together, learning included."""
        return self.costs.steps * self.costs.num_envs / (self.costs.total_s or 1.0)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Parts of the model's time. Waiting points at ``mode`` or ``num_workers``."""
        costs, pointers = self.costs, dict[str, tuple[float, str]]()
        if costs.off_policy and costs.mode == "sync":
            # An off-policy model can learn while its workers collect, which hides the shorter one of the two.
            pointers["waiting for environments"] = NOTABLE, "mode"
        elif costs.num_workers < costs.num_envs:
            pointers["waiting for environments"] = LARGE, "num_workers"
        return time_facts(costs.seconds, costs.steps or 1, "s per step of all environments", pointers)

    @property
    def largest_gain(self) -> float:
        """Upper bound on the gain of faster environments: the run's time over its time without any waiting."""
        return gain_without(self.costs.shares["waiting for environments"])

    @property
    def is_slower(self) -> bool:
        """True if a step of all environments takes longer on workers than in this process, by a certain margin."""
        costs = self.costs
        return costs.env_step_s is not None and costs.waiting_s > CERTAIN * costs.steps * costs.in_process_s

    def __str__(self) -> str:
        costs = self.costs
        if self.obstacle:
            return f"not accelerated: {self.obstacle}"
        head = f"{costs.num_envs} environments in {costs.num_workers} workers, {costs.mode}"
        bound = gain_in_words("the run", "environments", costs.shares["waiting for environments"])
        rate = in_steps(self.env_steps_per_second)
        lines = [f"{head}: {rate} env steps/s", *in_lines("time of the model", self.facts), bound]
        if self.is_slower:
            there, here = in_seconds(costs.waiting_s / costs.steps), in_seconds(costs.in_process_s)
            lines.append(f"slower than without: a step of all environments takes {there}, and {here} in this process")
        return "\n".join(lines)
