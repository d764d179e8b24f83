"""Accumulation and reduction of the gradients of workers to those that are yielded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from parenv.errors import GradientError, span
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.gradient import Gradient, GradientLayout
from parenv.experience.reduction import Reducer
from parenv.experience.rollout import Rollout
from parenv.options import GradientOptions
from parenv.pool.arrival import Arrival
from parenv.pool.statistics import PoolStatistics

MAX_SKIPPED_IN_A_ROW = 100


class Accumulator:
    """Accumulates arrivals until they are enough for a gradient.

    Args:
        options: Options of the user.
        layout: Layout of the flat gradient.
        totals: Statistics of the pool, added to.
    """

    def __init__(self, options: GradientOptions, layout: GradientLayout, totals: PoolStatistics) -> None:
        self._options, self._layout, self._totals = options, layout, totals
        self._skipped_in_a_row = 0
        self._begin()

    def add(self, arrival: Arrival, version: int) -> Gradient | None:
        """Add an arrival.

        Returns:
            Gradient, if there are enough samples or arrivals now, or ``None``.

        Raises:
            GradientError: A gradient is not finite, or too many in a row are not if these are skipped.
        """
        finite = [i for i, norm in enumerate(arrival.norms) if math.isfinite(norm)]
        if len(finite) < len(arrival.norms):
            self._skip(arrival, [i for i in range(len(arrival.norms)) if i not in finite])
        if not finite:
            return None
        self._skipped_in_a_row = 0
        gradients = self._layout.tensor(arrival.gradients)
        samples = [arrival.samples[i] for i in finite]
        self._reducer.add([gradients[i] for i in finite], samples, version - arrival.rollout.policy_version)
        self._versions.append(arrival.rollout.policy_version)
        self._episodes.append(arrival.rollout.episodes)
        if self._options.keep_rollouts:
            self._rollouts.append(arrival.rollout)
        self._workers += [arrival.workers[i] for i in finite]
        self._samples += samples
        self._metrics += [arrival.metrics[i] for i in finite]
        return self._finish(version) if self._is_enough else None

    @property
    def _is_enough(self) -> bool:
        if self._options.batch_size is not None:
            return sum(self._samples) >= self._options.batch_size
        return len(self._versions) >= self._options.num_arrivals

    def _finish(self, version: int) -> Gradient:
        oldest = min(self._versions)
        gradient = Gradient(
            flat=self._reducer.result(),
            layout=self._layout,
            metrics=_means(self._metrics, self._samples),
            num_samples=sum(self._samples),
            policy_version=oldest,
            policy_lag=version - oldest,
            workers=tuple(self._workers),
            episodes=EpisodeStatistics.joined(self._episodes),
            rollouts=tuple(self._rollouts),
        )
        self._totals.gradients += 1
        self._begin()
        return gradient

    def _begin(self) -> None:
        self._reducer = Reducer(self._options)
        self._versions: list[int] = []
        self._episodes: list[EpisodeStatistics] = []
        self._rollouts: list[Rollout] = []
        self._workers: list[int] = []
        self._samples: list[int] = []
        self._metrics: list[Mapping[str, float]] = []

    def _skip(self, arrival: Arrival, bad: Sequence[int]) -> None:
        first, about = bad[0], arrival.rollout
        if self._options.on_nonfinite == "raise":
            raise GradientError(
                f"the gradient of worker {arrival.workers[first]} (env_ids {span(arrival.env_ids[first])}, policy "
                f"version {about.policy_version}) must be finite, got norm {arrival.norms[first]} and loss "
                f"{arrival.metrics[first].get('loss')}. Look for a division by zero or a log of zero in loss_fn, or "
                'pass GradientOptions(on_nonfinite="skip").'
            )
        self._totals.skipped_gradients += len(bad)
        self._skipped_in_a_row += len(bad)
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise GradientError(
                f"{self._skipped_in_a_row} gradients in a row are not finite, the last one of policy version "
                f"{about.policy_version}. Look for NaN in the parameters, or lower the learning rate."
            )


def _means(metrics: Sequence[Mapping[str, float]], samples: Sequence[int]) -> dict[str, float]:
    """Return the means of each metric over the workers that have it, weighted by samples."""
    means = {}
    for name in {name: None for one in metrics for name in one}:
        have = [(one[name], n) for one, n in zip(metrics, samples, strict=True) if name in one]
        means[name] = sum(value * n for value, n in have) / sum(n for _, n in have)
    return means
