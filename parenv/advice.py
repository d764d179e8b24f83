"""Facts about a run: what each part of it takes, who waits for whom, and which limits it has reached."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from parenv.errors import ConfigurationError
from parenv.options import Mode, Parallelism
from parenv.pool.statistics import PoolStatistics

SMALL, NOTABLE, LARGE = 0.05, 0.1, 0.5
"""Shares of time from which a fact points at a setting."""
MOSTLY_WAITING = 0.9
"""Share of waiting from which a bound on the gain is not useful, because the loop does nothing else."""
CHANGES = {
    "num_workers": "more workers (num_workers) if cores are free",
    "step_workers": "more workers (step_workers) if cores are free",
    "num_envs": "more environments (num_envs)",
    "rollout_length": "a longer rollout_length",
    "mode": "mode='async'",
    "max_policy_lag": "a larger max_policy_lag",
}
"""Change to try, by the setting that a fact points at."""


@dataclass(frozen=True)
class Setting:
    """The arguments of a pool on which its speed depends most. Its text can be pasted into a call.

    Args:
        num_workers: Number of worker processes. With 0, the main process does their work.
        num_envs: Number of sub-environments in all workers together.
        mode: ``"sync"`` or ``"async"``.
        parallelism: ``"experience"`` or ``"gradient"``.
        rollout_length: Env steps per sub-environment and rollout, or ``"episode"``.
        step_workers: ``WorkerOptions.step_workers``.
        worker_device: ``WorkerOptions.device`` of the first worker.

    >>> print(Setting(1, 16, "sync", "experience", 128, step_workers=2))
    num_workers=1, num_envs=16, mode='sync', parallelism='experience', rollout_length=128, \
workers=WorkerOptions(step_workers=2)
    """

    num_workers: int
    num_envs: int
    mode: Mode
    parallelism: Parallelism
    rollout_length: int | Literal["episode"]
    step_workers: int | None = None
    worker_device: str = "cpu"

    def __str__(self) -> str:
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        workers = {"step_workers": own.pop("step_workers"), "device": own.pop("worker_device")}
        words = [f"{name}={value!r}" for name, value in own.items()]
        options = [f"{name}={value!r}" for name, value in workers.items() if value not in (None, "cpu")]
        return ", ".join([*words, f"workers=WorkerOptions({', '.join(options)})"] if options else words)


@dataclass(frozen=True)
class Fact:
    """One measured figure.

    Args:
        name: Name of the thing that was measured, such as ``"waiting for workers"``.
        value: The figure.
        unit: Unit of the figure, such as ``"s per env step"``.
        share: Share of the time of the process concerned, from 0 to 1, or ``None`` if the figure is not a time.
        setting: Name of the setting at which the fact clearly points, or ``None``.
        change: Change of the setting to try, in words. Default: the one in ``CHANGES``.
    """

    name: str
    value: float
    unit: str
    share: float | None = None
    setting: str | None = None
    change: str | None = None

    @property
    def hint(self) -> str:
        """The change to try, such as ``"mode='async'"``, or ``""`` if the fact does not point at a setting."""
        return "" if self.setting is None else self.change or CHANGES[self.setting]

    @property
    def words(self) -> str:
        """The figure with its unit, such as ``"12 µs per env step"``."""
        if self.unit.startswith("s per "):
            return f"{in_seconds(self.value)}{self.unit[1:]}"
        return f"{self.value:,.0f} {self.unit}"


@dataclass(frozen=True)
class Advice:
    """Facts about a run, from :meth:`AsyncWorkerPool.advice() <parenv.AsyncWorkerPool.advice>`.

    Args:
        setting: Setting of the run.
        env_steps_per_second: Env steps per second so far.
        workers: Parts of the workers' time, as mean seconds per env step.
        driver: Parts of the main process's time, as mean seconds per rollout.
        limits: Limits that the run has reached.
    """

    setting: Setting
    env_steps_per_second: float
    workers: tuple[Fact, ...]
    driver: tuple[Fact, ...]
    limits: tuple[Fact, ...]

    @property
    def worker_shares(self) -> Mapping[str, float]:
        """Shares of the workers' time, by part."""
        return {fact.name: fact.share or 0.0 for fact in self.workers}

    @property
    def driver_shares(self) -> Mapping[str, float]:
        """Shares of the main process's time, by part."""
        return {fact.name: fact.share or 0.0 for fact in self.driver}

    @property
    def largest_gain(self) -> float:
        """Upper bound on the gain of faster collecting: the loop's time over its time without any waiting."""
        return gain_without(self.driver_shares["waiting for workers"])

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.setting}: {in_steps(self.env_steps_per_second)} env steps/s",
                *in_lines("time of the workers", self.workers),
                *in_lines("time of the main process", self.driver),
                *in_lines("limits reached", self.limits),
                gain_in_words("the loop", "workers", self.driver_shares["waiting for workers"]),
            ]
        )


def facts_of(statistics: PoolStatistics, setting: Setting, max_policy_lag: int | None) -> Advice:
    """Return the facts that the statistics of a pool contain.

    Args:
        statistics: Statistics of the pool.
        setting: Setting of the pool.
        max_policy_lag: The pool's bound on the policy lag in publishes, or ``None``.

    Raises:
        ConfigurationError: The pool has not yielded a rollout yet.
    """
    if not statistics.rollouts:
        raise ConfigurationError("advice() needs at least one rollout. Run the loop for a while first.")
    return Advice(
        setting,
        statistics.env_steps_per_second,
        workers=_worker_facts(statistics, setting),
        driver=_driver_facts(statistics, setting),
        limits=tuple(_limits(statistics, setting, max_policy_lag)),
    )


def _worker_facts(statistics: PoolStatistics, setting: Setting) -> tuple[Fact, ...]:
    seconds = {
        "environment": statistics.environment_seconds,
        "acting": statistics.acting_seconds,
        "learning": statistics.learning_seconds,
        "commit": statistics.committing_seconds,
        "waiting for the learner": statistics.waiting_seconds,
    }
    pointers = {"acting": (LARGE, "num_envs")}
    if setting.rollout_length != "episode":
        pointers["commit"] = (NOTABLE, "rollout_length")
    if setting.mode == "sync":  # In async mode the learner is the limit, and no setting of the pool changes that.
        pointers["waiting for the learner"] = (NOTABLE, "mode")
    return time_facts(seconds, statistics.env_steps, "s per env step", pointers)


def _driver_facts(statistics: PoolStatistics, setting: Setting) -> tuple[Fact, ...]:
    names = {"learning": "learning", "publishing": "transfer of weights", "waiting": "waiting for workers"}
    names["calling"] = "calling workers"
    seconds = {name: statistics.driver_seconds.get(part, 0.0) for part, name in names.items()}
    pointers = {}
    if setting.rollout_length != "episode":
        pointers["transfer of weights"] = (SMALL, "rollout_length")
    if not _too_few_cores(statistics):
        pointers["waiting for workers"] = (LARGE, _workers_of(setting))
    return time_facts(seconds, statistics.rollouts, "s per rollout", pointers)


def _workers_of(setting: Setting) -> str:
    """Return the name of the setting that is the number of processes that step."""
    return "num_workers" if setting.step_workers is None else "step_workers"


def _too_few_cores(statistics: PoolStatistics) -> bool:
    """Return whether workers lose more time to each other than to sleep, so that more workers would not help."""
    contended_s, sleeping_s = statistics.contended_seconds, statistics.sleeping_seconds
    return contended_s >= NOTABLE * statistics.busy_seconds and contended_s > sleeping_s


def _workers_off_their_cores(statistics: PoolStatistics, setting: Setting) -> Iterator[Fact]:
    """Yield the time that workers waited for a core or slept. Only the longer one points at the number of workers."""
    busy_s, too_few_cores, name = statistics.busy_seconds, _too_few_cores(statistics), _workers_of(setting)
    fewer = name if too_few_cores and getattr(setting, name) > 1 else None
    for fact, seconds, pointer, change in (
        ("workers waiting for a core", statistics.contended_seconds, fewer, f"fewer workers ({name})"),
        ("workers sleeping, as for a simulator", statistics.sleeping_seconds, None if too_few_cores else name, None),
    ):
        if busy_s and seconds >= NOTABLE * busy_s:
            each_s = seconds / statistics.env_steps
            yield Fact(fact, each_s, "s per env step", seconds / busy_s, pointer, change if pointer else None)


def _limits(statistics: PoolStatistics, setting: Setting, max_policy_lag: int | None) -> Iterator[Fact]:
    yield from _workers_off_their_cores(statistics, setting)
    spread_s, mean_s = statistics.rollout_seconds_spread, statistics.rollout_seconds
    if setting.mode == "sync" and setting.num_workers > 1 and spread_s >= NOTABLE * mean_s:
        yield Fact("deviation of the time for a rollout", spread_s, "s per rollout", spread_s / mean_s, "mode")
    at_bound = sum(count for lag, count in statistics.policy_lag.items() if lag == max_policy_lag)
    if setting.mode == "async" and at_bound:
        yield Fact("policy lag at its bound", at_bound, "rollouts", setting="max_policy_lag")
    if statistics.dropped_rollouts:
        yield Fact("dropped, too old", statistics.dropped_rollouts, "rollouts", setting="max_policy_lag")
    if statistics.copied_rollouts:
        yield Fact("copied, since the loop keeps others", statistics.copied_rollouts, "rollouts")


def time_facts(
    seconds: Mapping[str, float], count: float, unit: str, pointers: Mapping[str, tuple[float, str]]
) -> tuple[Fact, ...]:
    """Return one fact for each part of a process's time.

    Args:
        seconds: Seconds by part.
        count: Number of units in these seconds.
        unit: Unit of the facts, such as ``"s per env step"``.
        pointers: Share from which a part points at a setting, and the name of the setting, by part.

    >>> time_facts({"acting": 1.0, "waiting": 3.0}, 10, "s per row", {"waiting": (0.5, "num_workers")})[1]
    Fact(name='waiting', value=0.3, unit='s per row', share=0.75, setting='num_workers', change=None)
    """
    total = sum(seconds.values())
    found = []
    for name, value in seconds.items():
        share = value / total if total else 0.0
        least, setting = pointers.get(name, (math.inf, None))
        found.append(Fact(name, value / count, unit, share, setting if share >= least else None))
    return tuple(found)


def gain_without(share: float) -> float:
    """Return how many times as fast a loop would be without a share of its time.

    >>> gain_without(0.75), gain_without(1.0)
    (4.0, inf)
    """
    return 1 / (1 - share) if share < 1 else math.inf


def gain_in_words(loop: str, waited_for: str, share: float) -> str:
    """Return how much faster a loop can become if it does not wait.

    Args:
        loop: Loop, as the subject of the sentence.
        waited_for: Things that the loop waits for, in the plural.
        share: Share of waiting in the time of the loop.

    >>> gain_in_words("the loop", "workers", 0.5)
    'without any waiting for workers, the loop would be at most 2 times as fast'
    >>> gain_in_words("the loop", "workers", 0.996)
    'the loop does little else than wait for workers: it is as fast as they are'
    """
    if share >= MOSTLY_WAITING:
        return f"{loop} does little else than wait for {waited_for}: it is as fast as they are"
    gain = gain_without(share)
    if share < SMALL:
        return (
            f"{loop} hardly waits for {waited_for}: faster {waited_for} would make it at most {gain:.2f} times as fast"
        )
    return f"without any waiting for {waited_for}, {loop} would be at most {gain:.3g} times as fast"


def in_lines(title: str, facts: Sequence[Fact]) -> list[str]:
    """Return a title and a line for each fact, in columns. Facts of zero are left out, and so is an empty group."""
    facts = [fact for fact in facts if fact.value]
    rows = [(fact.name, fact.words, "" if fact.share is None else f"{fact.share:.0%}") for fact in facts]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [title] if facts else []
    for fact, (name, words, share) in zip(facts, rows, strict=True):
        pointer = f"try {fact.hint}" if fact.hint else ""
        lines.append(f"  {name:<{widths[0]}}  {words:>{widths[1]}}  {share:>{widths[2]}}  {pointer}".rstrip())
    return lines


def in_steps(rate: float) -> str:
    """Return a rate in three digits, with commas.

    >>> in_steps(331204.0), in_steps(47.31)
    ('331,000', '47.3')
    """
    rounded = float(f"{rate:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def in_seconds(seconds: float) -> str:
    """Return a time in three digits, with its unit.

    >>> in_seconds(2.5e-6), in_seconds(0.0012), in_seconds(3.0)
    ('2.5 µs', '1.2 ms', '3 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
