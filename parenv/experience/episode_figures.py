"""Figures of evaluated episodes: means, interquartile means and success rates with 95 % intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from parenv.experience.endings import is_finished
from parenv.libraries import require

if TYPE_CHECKING:
    from parenv.experience.episodes import EpisodeStatistics

CONFIDENCE = 0.95
RESAMPLES = 2000
_SEED = 0
"""Seed of the bootstrap, so that equal episodes give equal figures."""
_TRIMMED = 0.25
Interval = tuple[float, float]
Samples = Sequence[npt.NDArray[np.float64]]
UNKNOWN: Interval = (math.nan, math.nan)


@dataclass(frozen=True)
class EpisodeFigures:
    """Figures of evaluated episodes. Lost episodes are counted in ``failures`` only.

    The intervals of returns are computed when they are read.

    Args:
        episodes: Number of episodes that were not lost.
        mean_return: Mean return. For several tasks, the mean of the tasks' means.
        iqm_return: Interquartile mean: mean return without the lowest and the highest quarter of the episodes.
        success_rate: Share of successes. NaN if no episode reports success.
        success_interval: Wilson's interval of the success rate.
        mean_length: Mean number of env steps.
        failures: Number of lost episodes by reason.
        seconds: Sum of the seconds of all episodes.
        samples: Returns of the episodes of each task, float64 ``[n]`` each.

    >>> from parenv.statistics import EpisodeStatistics
    >>> episodes = EpisodeStatistics.of([1.0, 2.0, 9.0], lengths=[1, 2, 9], seconds=[0.1] * 3, env_ids=[0, 1, 2])
    >>> episodes.figures.mean_return, [round(bound, 2) for bound in episodes.figures.mean_interval]
    (4.0, [-6.83, 14.83])
    """

    episodes: int
    mean_return: float
    iqm_return: float
    success_rate: float
    success_interval: Interval
    mean_length: float
    failures: Mapping[str, int]
    seconds: float
    samples: Samples = field(repr=False, compare=False)

    @cached_property
    def mean_interval(self) -> Interval:
        """Interval of the mean return with 95 % confidence, by Student's t distribution."""
        return mean_interval(self.samples, self.mean_return)

    @cached_property
    def iqm_interval(self) -> Interval:
        """Interval of the interquartile mean, by a bootstrap that is stratified by task."""
        return bootstrap_interval(self.samples, interquartile_mean)

    @classmethod
    def of_strata(cls, strata: Sequence[EpisodeStatistics], successes: Sequence[bool] = (), **more: Any) -> Self:
        """Return the figures of the episodes of one task, or of several tasks together.

        Args:
            strata: Episodes of each task.
            successes: Whether each episode is a success, for the episodes of which that is known.
            **more: Fields of a subclass.
        """
        finished = [is_finished(one.ended_by) for one in strata]
        samples = [one.returns[kept] for one, kept in zip(strata, finished, strict=True) if kept.any()]
        lengths = [length for one, kept in zip(strata, finished, strict=True) for length in one.lengths[kept].tolist()]
        lost = [why for one, kept in zip(strata, finished, strict=True) for why in one.ended_by[~kept].tolist()]
        return cls(
            episodes=len(lengths),
            mean_return=float(np.mean([sample.mean() for sample in samples])) if samples else math.nan,
            iqm_return=float(interquartile_mean(*samples)) if samples else math.nan,
            success_rate=float(np.mean(successes)) if successes else math.nan,
            success_interval=wilson_interval(sum(successes), len(successes)),
            mean_length=float(np.mean(lengths)) if lengths else math.nan,
            failures=dict(Counter(lost)),
            seconds=sum(seconds for one in strata for seconds in one.seconds.tolist()),
            samples=samples,
            **more,
        )

    def cells(self) -> dict[str, str]:
        """Return the figures as texts, by the heads of their columns."""
        return {
            "episodes": str(self.episodes),
            "mean return [95 %]": _with_interval(self.mean_return, self.mean_interval),
            "IQM [95 %]": _with_interval(self.iqm_return, self.iqm_interval),
            "success [95 %]": _with_interval(self.success_rate, self.success_interval, ".0%"),
            "length": _shown(self.mean_length, ".1f"),
            "lost": str(sum(self.failures.values())),
            "seconds": f"{self.seconds:.1f}",
        }


def mean_interval(samples: Samples, mean: float) -> Interval:
    """Return the interval of the mean of the samples' means, by Student's t distribution.

    The degrees of freedom of several samples are the ones of Welch and Satterthwaite.
    """
    if not samples or any(len(sample) < 2 for sample in samples):
        return UNKNOWN
    parts = np.array([sample.var(ddof=1) / len(sample) for sample in samples]) / len(samples) ** 2
    variance = float(parts.sum())
    if not variance:
        return mean, mean
    freedom = variance**2 / float(sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, samples, strict=True)))
    half = student_t((1 + CONFIDENCE) / 2, freedom) * math.sqrt(variance)
    return mean - half, mean + half


def student_t(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution.

    Args:
        probability: Probability of a smaller value, at least 0.5.
        freedom: Degrees of freedom, at least 1.

    >>> [round(student_t(0.975, freedom), 6) for freedom in (1, 4, 1000)]
    [12.706205, 2.776445, 1.962339]
    """
    # With t = sqrt(freedom) * tan(angle), the density is proportional to cos(angle) ** (freedom - 1).
    nodes, weights = np.polynomial.legendre.leggauss(64)
    whole = math.sqrt(math.pi) * math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    low, high = 0.0, min(math.pi / 2, 40 / math.sqrt(freedom))  # The density is a narrow peak if freedom is large.
    for _ in range(60):
        angle = (low + high) / 2
        area = angle / 2 * float(weights @ np.cos(angle / 2 * (nodes + 1)) ** (freedom - 1)) / whole
        low, high = (angle, high) if area < probability - 0.5 else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def wilson_interval(successes: int, count: int) -> Interval:
    """Return Wilson's interval of a share.

    >>> [round(bound, 3) for bound in wilson_interval(8, 10)]
    [0.49, 0.943]
    """
    if not count:
        return UNKNOWN
    stats: Any = require("scipy.stats", "the interval of a success rate", "eval")
    found = stats.binomtest(int(successes), count).proportion_ci(CONFIDENCE, method="wilson")
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


def interquartile_mean(*samples: Any) -> Any:
    """Return the mean of all samples together without their lowest and highest quarter, along the last axis."""
    values = np.concatenate(samples, axis=-1)
    count = values.shape[-1]
    cut = int(_TRIMMED * count)
    return np.partition(values, (cut, count - cut - 1), axis=-1)[..., cut : count - cut].mean(axis=-1)


def _with_interval(value: float, interval: Interval, form: str = ".2f") -> str:
    if math.isnan(value):
        return "-"
    low, high = (_shown(bound, form) for bound in interval)
    return f"{_shown(value, form)} [{low}, {high}]"


def _shown(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form).replace("%", " %")
