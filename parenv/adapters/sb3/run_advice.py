"""Facts about an accelerated run: the parts of the model's time, and the gain that faster collecting can bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from parenv.advice import LARGE, NOTABLE, Fact, gain_in_words, gain_without, in_lines, in_steps, time_facts
from parenv.errors import ConfigurationError


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
        return {name: seconds / self.total_s for name, seconds in self.seconds.items()}


@dataclass(frozen=True)
class RunAdvice:
    """Facts about an accelerated run.

    Args:
        costs: Times of the run.

    Raises:
        ConfigurationError: The model has not learned yet.

    >>> print(RunAdvice(RunCosts(16, 2, "sync", True, 1000, 3.0, 4.0, 4.0)))
    16 environments in 2 workers, sync: 2,000 env steps/s
    time of the model
      waiting for environments  3 ms per step of all environments  38%  try mode='async'
      acting and storing        1 ms per step of all environments  12%
      learning                  4 ms per step of all environments  50%
    without any waiting for environments, the run would be at most 1.6 times as fast
    """

    costs: RunCosts

    def __post_init__(self) -> None:
        if not self.costs.steps or not self.costs.learning_s:
            raise ConfigurationError("advice() needs a model that has learned. Call model.learn(...) first.")

    @property
    def env_steps_per_second(self) -> float:
        """Env steps per second of all environments together, learning included."""
        return self.costs.steps * self.costs.num_envs / self.costs.total_s

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Parts of the model's time. Waiting points at ``mode`` or ``num_workers``."""
        costs, pointers = self.costs, dict[str, tuple[float, str]]()
        if costs.off_policy and costs.mode == "sync":
            # An off-policy model can learn while its workers collect, which hides the shorter one of the two.
            pointers["waiting for environments"] = NOTABLE, "mode"
        elif costs.num_workers < costs.num_envs:
            pointers["waiting for environments"] = LARGE, "num_workers"
        return time_facts(costs.seconds, costs.steps, "s per step of all environments", pointers)

    @property
    def largest_gain(self) -> float:
        """Upper bound on the gain of faster environments: the run's time over its time without any waiting."""
        return gain_without(self.costs.shares["waiting for environments"])

    def __str__(self) -> str:
        costs = self.costs
        head = f"{costs.num_envs} environments in {costs.num_workers} workers, {costs.mode}"
        bound = gain_in_words("the run", "environments", costs.shares["waiting for environments"])
        rate = in_steps(self.env_steps_per_second)
        return "\n".join([f"{head}: {rate} env steps/s", *in_lines("time of the model", self.facts), bound])
