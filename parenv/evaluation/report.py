"""Report of an evaluation: means, success rates and interquartile means with 95 % intervals."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parenv.bench.display import Table, in_text
from parenv.errors import ConfigurationError
from parenv.evaluation.results import EvaluatedEpisode, read
from parenv.experience.metrics import TASK, metrics_of
from parenv.libraries import require

CONFIDENCE = 0.95
RESAMPLES = 2000
_SEED = 0
"""Seed of the bootstrap, so that equal episodes give equal reports."""
_TRIMMED = 0.25
Interval = tuple[float, float]
Samples = Sequence[npt.NDArray[np.float64]]
UNKNOWN: Interval = (math.nan, math.nan)


@dataclass(frozen=True)
class TaskReport:
    """Figures of one task, or of all tasks together. Lost episodes are counted in ``failures`` only.

    Args:
        task: Name of the task; ``"all tasks"`` for all.
        episodes: Number of episodes that were not lost.
        mean_return: Mean return. For all tasks, the mean of the tasks' means.
        mean_interval: Interval of the mean return with 95 % confidence, by Student's t distribution.
        iqm_return: Interquartile mean: mean return without the lowest and the highest quarter of the episodes.
        iqm_interval: Interval of the interquartile mean, by a bootstrap that is stratified by task.
        success_rate: Share of successes. NaN if no episode reports success.
        success_interval: Wilson's interval of the success rate.
        mean_length: Mean number of env steps.
        failures: Number of lost episodes by reason.
        seconds: Sum of the seconds of all episodes.

    >>> report = TaskReport.of("reach", [EvaluatedEpisode("reach", i, i, 10.0 + i, 5, i > 0, "terminated", 0.1)
    ...                                  for i in range(4)])
    >>> report.mean_return, report.success_rate, [round(bound, 2) for bound in report.success_interval]
    (11.5, 0.75, [0.3, 0.95])
    """

    task: str
    episodes: int
    mean_return: float
    mean_interval: Interval
    iqm_return: float
    iqm_interval: Interval
    success_rate: float
    success_interval: Interval
    mean_length: float
    failures: Mapping[str, int]
    seconds: float

    @classmethod
    def of(cls, task: str, *strata: Sequence[EvaluatedEpisode]) -> TaskReport:
        """Make the report of one task, or of several tasks together.

        Args:
            task: Name.
            *strata: Episodes of each task.
        """
        everything = [one for stratum in strata for one in stratum]
        kept = [[one for one in stratum if not one.is_lost] for stratum in strata]
        finished = [one for stratum in kept for one in stratum]
        samples = [np.array([one.episode_return for one in stratum]) for stratum in kept if stratum]
        successes = [one.success for one in finished if one.success is not None]
        mean, mean_interval = mean_of_means(samples)
        return cls(
            task=task,
            episodes=len(finished),
            mean_return=mean,
            mean_interval=mean_interval,
            iqm_return=float(_iqm(*samples)) if samples else math.nan,
            iqm_interval=bootstrap_interval(samples, _iqm),
            success_rate=float(np.mean(successes)) if successes else math.nan,
            success_interval=wilson_interval(sum(successes), len(successes)),
            mean_length=float(np.mean([one.length for one in finished])) if finished else math.nan,
            failures=dict(Counter(one.ended_by for one in everything if one.is_lost)),
            seconds=sum(one.seconds for one in everything),
        )


@dataclass(frozen=True)
class Comparison:
    """Comparison of two evaluations of the same tasks.

    Args:
        probability: Probability that an episode of the first evaluation has a higher return than an episode of the
            second one in the same task, averaged over tasks. Equal returns count as half.
        interval: Interval of the probability with 95 % confidence, by a bootstrap that is stratified by task.
        by_task: Probability in each task.

    >>> print(Comparison(0.9, (0.8, 0.95), {"reach": 0.9}))
    probability of improvement 0.90 [0.80, 0.95]
    """

    probability: float
    interval: Interval
    by_task: Mapping[str, float]

    def __str__(self) -> str:
        low, high = self.interval
        return f"probability of improvement {self.probability:.2f} [{low:.2f}, {high:.2f}]"


class EvaluationReport:
    """Result of :func:`~parenv.evaluate`.

    The interquartile mean, its stratified bootstrap and the probability of improvement follow Agarwal et al., "Deep
    Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021.

    Args:
        episodes: All episodes.

    Attributes:
        episodes: Episodes, ordered by task and index.
        tasks: :class:`TaskReport` of each task by name.
        overall: :class:`TaskReport` of all tasks together.

    Raises:
        ConfigurationError: scipy is not installed.

    >>> episodes = [EvaluatedEpisode("reach", i, i, float(i % 5), 5, i % 5 > 1, "terminated", 0.1) for i in range(20)]
    >>> report = EvaluationReport(episodes)
    >>> print(report)  # doctest: +NORMALIZE_WHITESPACE
            episodes        mean return [95 %]         IQM [95 %]    success [95 %]  length  lost  seconds
    reach         20         2.00 [1.32, 2.68]  2.00 [1.10, 2.90]  60 % [39 %, 78 %]     5.0     0      2.0
    >>> report.compare(report).probability
    0.5
    """

    def __init__(self, episodes: Sequence[EvaluatedEpisode]) -> None:
        require("scipy.stats", "the report of an evaluation", "eval")
        strata: dict[str, list[EvaluatedEpisode]] = {}
        for one in sorted(episodes, key=lambda one: one.index):
            strata.setdefault(one.task, []).append(one)
        self.tasks = {task: TaskReport.of(task, stratum) for task, stratum in strata.items()}
        self.overall = TaskReport.of("all tasks", *strata.values())
        self.episodes = tuple(one for stratum in strata.values() for one in stratum)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EvaluationReport:
        """Make the report of a file that :func:`~parenv.evaluate` has written, also of one that is not complete.

        Raises:
            ConfigurationError: The file is not of an evaluation.
        """
        return cls(read(Path(path))[1])

    def returns(self, task: str) -> npt.NDArray[np.float64]:
        """Return the returns of the episodes of a task that were not lost, by index, float64 ``[episodes]``."""
        return np.array([one.episode_return for one in self.episodes if one.task == task and not one.is_lost])

    def compare(self, other: EvaluationReport) -> Comparison:
        """Compare with another evaluation of the same tasks.

        Args:
            other: Evaluation, such as of an earlier policy.

        Raises:
            ConfigurationError: The tasks differ, or one has no episodes.
        """
        if set(self.tasks) != set(other.tasks):
            differing = sorted(set(self.tasks) ^ set(other.tasks))
            raise ConfigurationError(f"compare() needs the same tasks, got {differing} in one report only.")
        pairs = [(self.returns(task), other.returns(task)) for task in self.tasks]
        if empty := [task for task, pair in zip(self.tasks, pairs, strict=True) if not all(map(len, pair))]:
            raise ConfigurationError(f"compare() needs episodes of every task, got none of {empty[0]!r}.")
        by_task = {task: float(_better(*pair)) for task, pair in zip(self.tasks, pairs, strict=True)}
        samples = [sample for pair in pairs for sample in pair]
        interval = bootstrap_interval(samples, _improvement)
        return Comparison(float(np.mean(list(by_task.values()))), interval, by_task)

    def metrics(self) -> dict[str, float]:
        """Return the figures as a flat dict for a logger: ``eval/mean_return``, ``eval/<task>/success_rate``, ...

        Values that are unknown, such as a success rate without successes or failures, are left out.
        """
        found = metrics_of(TASK, self.overall, "eval/")
        for name, task in self.tasks.items():
            found |= metrics_of(TASK, task, f"eval/{name}/")
        return found

    def __str__(self) -> str:
        several = [self.overall] if len(self.tasks) > 1 else []
        head = ("", "episodes", "mean return [95 %]", "IQM [95 %]", "success [95 %]", "length", "lost", "seconds")
        rows = [_row(one) for one in (*self.tasks.values(), *several)]
        lines = in_text(Table("", head, rows))[1:]
        for one in self.tasks.values():
            if one.failures:
                causes = ", ".join(f"{cause} {count}" for cause, count in sorted(one.failures.items()))
                lines.append(f"lost episodes of {one.task}: {causes}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        one = self.overall
        return f"<EvaluationReport of {len(self.episodes)} episodes of {len(self.tasks)} tasks: {one.mean_return:.6g}>"


def mean_of_means(samples: Samples) -> tuple[float, Interval]:
    """Return the mean of the samples' means, and its interval by Student's t distribution.

    The degrees of freedom of several samples are those of Welch and Satterthwaite.
    """
    if not samples:
        return math.nan, UNKNOWN
    mean = float(np.mean([sample.mean() for sample in samples]))
    if any(len(sample) < 2 for sample in samples):
        return mean, UNKNOWN
    parts = np.array([sample.var(ddof=1) / len(sample) for sample in samples]) / len(samples) ** 2
    variance = float(parts.sum())
    if not variance:
        return mean, (mean, mean)
    freedom = variance**2 / float(sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, samples, strict=True)))
    half = float(_stats().t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(variance)
    return mean, (mean - half, mean + half)


def wilson_interval(successes: int, count: int) -> Interval:
    """Return Wilson's interval of a share.

    >>> [round(bound, 3) for bound in wilson_interval(8, 10)]
    [0.49, 0.943]
    """
    if not count:
        return UNKNOWN
    found = _stats().binomtest(int(successes), count).proportion_ci(CONFIDENCE, method="wilson")
    return float(found.low), float(found.high)


def bootstrap_interval(samples: Samples, statistic: Callable[..., Any]) -> Interval:
    """Return the percentile interval of a statistic, with each sample resampled by itself.

    Args:
        samples: Samples, float64 ``[n]`` each.
        statistic: Function of one array ``[..., n]`` per sample that reduces the last axis.
    """
    if not samples or any(len(sample) < 2 for sample in samples):
        return UNKNOWN
    generator = np.random.default_rng(_SEED)
    resampled = [sample[generator.integers(0, len(sample), (RESAMPLES, len(sample)))] for sample in samples]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(statistic(*resampled), [tail, 100 - tail])
    return float(low), float(high)


def _iqm(*samples: Any) -> Any:
    return _stats().trim_mean(np.concatenate(samples, axis=-1), _TRIMMED, axis=-1)


def _improvement(*samples: Any) -> Any:
    return np.mean([_better(mine, theirs) for mine, theirs in zip(samples[::2], samples[1::2], strict=True)], axis=0)


def _better(mine: Any, theirs: Any) -> Any:
    """Return the share of pairs in which the first value is higher, with equal values as half, along the last axis."""
    ranks = _stats().rankdata(np.concatenate([mine, theirs], axis=-1), axis=-1)
    count, others = mine.shape[-1], theirs.shape[-1]
    return (ranks[..., :count].sum(axis=-1) - count * (count + 1) / 2) / (count * others)


def _stats() -> Any:
    return require("scipy.stats", "the report of an evaluation", "eval")


def _row(one: TaskReport) -> tuple[str, ...]:
    return (
        one.task,
        str(one.episodes),
        _with_interval(one.mean_return, one.mean_interval),
        _with_interval(one.iqm_return, one.iqm_interval),
        _with_interval(one.success_rate, one.success_interval, ".0%"),
        _shown(one.mean_length, ".1f"),
        str(sum(one.failures.values())),
        f"{one.seconds:.1f}",
    )


def _with_interval(value: float, interval: Interval, form: str = ".2f") -> str:
    if math.isnan(value):
        return "-"
    low, high = (_shown(bound, form) for bound in interval)
    return f"{_shown(value, form)} [{low}, {high}]"


def _shown(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form).replace("%", " %")
