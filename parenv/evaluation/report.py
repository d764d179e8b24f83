"""Report of an evaluation of several tasks: figures with 95 % intervals, and comparison with another evaluation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parenv.errors import ConfigurationError
from parenv.evaluation.results import EvaluatedEpisode, read
from parenv.experience.episode_figures import EpisodeFigures, Interval, bootstrap_interval
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.metrics import TASK, metrics_of
from parenv.experience.summary import text_table
from parenv.libraries import require


@dataclass(frozen=True, kw_only=True)
class TaskReport(EpisodeFigures):
    """Figures of one task, or of all tasks together, see :class:`~parenv.evaluation.EpisodeFigures`.

    Args:
        task: Name of the task; ``"all tasks"`` for all.

    >>> report = TaskReport.of("reach", [EvaluatedEpisode("reach", i, i, 10.0 + i, 5, i > 0, "terminated", 0.1)
    ...                                  for i in range(4)])
    >>> report.mean_return, report.success_rate, [round(bound, 2) for bound in report.success_interval]
    (11.5, 0.75, [0.3, 0.95])
    """

    task: str

    @classmethod
    def of(cls, task: str, *strata: Sequence[EvaluatedEpisode]) -> TaskReport:
        """Make the report of one task, or of several tasks together.

        Args:
            task: Name.
            *strata: Episodes of each task.
        """
        finished = [one for stratum in strata for one in stratum if not one.is_lost]
        successes = [one.success for one in finished if one.success is not None]
        return cls.of_strata([_statistics(stratum) for stratum in strata], successes, task=task)


def _statistics(episodes: Sequence[EvaluatedEpisode]) -> EpisodeStatistics:
    columns = [(one.episode_return, one.length, one.seconds, one.index, one.ended_by) for one in episodes]
    return EpisodeStatistics.of(*(zip(*columns, strict=True) if columns else [()] * 5))


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
        rows = [(one.task, *one.cells().values()) for one in (*self.tasks.values(), *several)]
        lines = text_table([("", *self.overall.cells()), *rows])
        for one in self.tasks.values():
            if one.failures:
                causes = ", ".join(f"{cause} {count}" for cause, count in sorted(one.failures.items()))
                lines.append(f"lost episodes of {one.task}: {causes}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        one = self.overall
        return f"<EvaluationReport of {len(self.episodes)} episodes of {len(self.tasks)} tasks: {one.mean_return:.6g}>"


def _improvement(*samples: Any) -> Any:
    return np.mean([_better(mine, theirs) for mine, theirs in zip(samples[::2], samples[1::2], strict=True)], axis=0)


def _better(mine: Any, theirs: Any) -> Any:
    """Return the share of pairs in which the first value is higher, with equal values as half, along the last axis."""
    stats: Any = require("scipy.stats", "the comparison of two evaluations", "eval")
    ranks = stats.rankdata(np.concatenate([mine, theirs], axis=-1), axis=-1)
    count, others = mine.shape[-1], theirs.shape[-1]
    return (ranks[..., :count].sum(axis=-1) - count * (count + 1) / 2) / (count * others)
