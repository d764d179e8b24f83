"""From what an accelerated run has cost to advice on how to set it: pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parenv.advice.recommendations import NEARLY, WORTH, Recommendation, in_seconds, in_steps
from parenv.errors import ConfigurationError
from parenv.process.cores import usable_cores


@dataclass(frozen=True)
class RunCosts:
    """What a run has cost.

    Args:
        num_envs: environments.
        num_workers: workers; 0: everything in the driver.
        mode: ``"sync"`` or ``"async"``.
        off_policy: whether the other mode is possible.
        steps: that all environments have made together.
        waiting_s: seconds that the model has waited for environments.
        collecting_s: seconds of the model in ``collect_rollouts``, waiting included.
        learning_s: seconds of the model in ``train``.

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
        """In ``collect_rollouts`` beside waiting: acting, where the model does it, wrappers, callbacks, the buffer."""
        return max(0.0, self.collecting_s - self.waiting_s)

    @property
    def total_s(self) -> float:
        """All of these."""
        return self.waiting_s + self.storing_s + self.learning_s

    @property
    def shares(self) -> dict[str, float]:
        """Of the model's time, by what it was spent on."""
        parts = {
            "waiting for environments": self.waiting_s,
            "acting and storing": self.storing_s,
            "learning": self.learning_s,
        }
        return {name: seconds / self.total_s for name, seconds in parts.items()}

    def predicted_s(self, num_workers: int, mode: str) -> float:
        """Seconds of another setting, as far as what was waited for divides among workers."""
        waiting_s = self.waiting_s * max(1, self.num_workers) / max(1, num_workers)
        if mode == self.mode or mode == "sync":
            return waiting_s + self.storing_s + self.learning_s
        return max(waiting_s, self.learning_s) + self.storing_s


@dataclass(frozen=True)
class RunAdvice:
    """What an accelerated run spent its time on, and how to set it.

    Args:
        costs: of the run.
        recommendations: one for each setting.

    >>> print(RunAdvice.of(RunCosts(16, 2, "sync", True, 1000, 3.0, 4.0, 4.0), cores=8))
    16 environments in 2 workers, sync: 2,000 env steps/s
    waiting for environments 38%, acting and storing 12%, learning 50%
    a step of all environments is waited for 3 ms and learned from in 4 ms
      num_workers  6, now 2         1.33 times as fast, where 6 cores are free
      mode         async, now sync  async is 1.2 times as fast: it learns while workers collect
    without any waiting it would be 1.6 times as fast
    """

    costs: RunCosts
    recommendations: tuple[Recommendation, ...]

    @classmethod
    def of(cls, costs: RunCosts, cores: int | None = None) -> RunAdvice:
        """What follows of the costs of a run.

        Args:
            costs: of the run.
            cores: that it may use; ``None``: as many as there are.

        Raises:
            ConfigurationError: nothing has been learned yet.
        """
        if not costs.steps or not costs.learning_s:
            raise ConfigurationError("there is no advice before the model has learned: call model.learn(...) first")
        workers = _workers(costs, usable_cores() if cores is None else cores)
        return cls(costs, (workers, _mode(costs, workers.value)))

    @property
    def env_steps_per_second(self) -> float:
        """Of all environments, learning included."""
        return self.costs.steps * self.costs.num_envs / self.costs.total_s

    def __getitem__(self, name: str) -> Recommendation:
        """The recommendation of that name."""
        return {one.name: one for one in self.recommendations}[name]

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _workers(costs: RunCosts, cores: int) -> Recommendation:
    """The fewest that are nearly as fast as any number that has cores."""
    now, most = costs.num_workers, max(1, min(cores, costs.num_envs))
    seconds = {n: costs.predicted_s(n, costs.mode) for n in sorted({*range(1, most + 1), max(1, now)})}
    enough = min(seconds.values()) / NEARLY
    value = next(n for n, predicted in seconds.items() if predicted <= enough)
    gain = costs.total_s / seconds[value]
    if gain < WORTH and now:
        value = min(value, now)
    return Recommendation("num_workers", value, now, f"{gain:.3g} times as fast, where {value} cores are free")


def _mode(costs: RunCosts, num_workers: int) -> Recommendation:
    if not costs.off_policy:
        return Recommendation("mode", "sync", costs.mode, "what an on-policy model learns from must be its own")
    if costs.mode == "async":
        return Recommendation("mode", "async", "async", "environments are stepped while the model learns")
    gain = costs.predicted_s(num_workers, "sync") / costs.predicted_s(num_workers, "async")
    value = "async" if gain >= WORTH else "sync"
    return Recommendation("mode", value, "sync", f"async is {gain:.3g} times as fast: it learns while workers collect")


def _lines(advice: RunAdvice) -> Iterator[str]:
    costs = advice.costs
    rate, steps = advice.env_steps_per_second, costs.steps
    yield f"{costs.num_envs} environments in {costs.num_workers} workers, {costs.mode}: {in_steps(rate)} env steps/s"
    yield ", ".join(f"{part} {share:.0%}" for part, share in costs.shares.items())
    waiting, learning = in_seconds(costs.waiting_s / steps), in_seconds(costs.learning_s / steps)
    yield f"a step of all environments is waited for {waiting} and learned from in {learning}"
    for one in advice.recommendations:
        value = f"{one.value}" if one.value == one.now else f"{one.value}, now {one.now}"
        yield f"  {one.name:<11}  {value:<15}  {one.because}"
    yield f"without any waiting it would be {costs.total_s / (costs.total_s - costs.waiting_s):.3g} times as fast"
