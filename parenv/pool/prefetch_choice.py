"""Choice of the number of rollouts that workers run ahead, for ``prefetch="auto"``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from parenv.pool.dispatch import Dispatch

if TYPE_CHECKING:
    from parenv.pool.statistics import Counters

FIRST, MAX_PREFETCH = 1, 2
SKIPPED, MEASURED = 2, 10
"""Number of rollouts of each worker that are not measured, because caches are cold, and of those that are."""
MUCH, LITTLE, MOST = 0.05, 0.01, 0.5
"""Shares of time: one that is worth a further rollout, one that is not, and most of it."""


class Times(NamedTuple):
    """Seconds so far.

    Args:
        workers_waited: Seconds that workers waited for a rollout request, summed over them.
        workers_busy: Seconds that workers collected, summed over them.
        main_waited: Seconds that the main process waited for rollouts.
        main_busy: Seconds of its other parts.
    """

    workers_waited: float
    workers_busy: float
    main_waited: float
    main_busy: float


def best_prefetch(num_workers: int, before: Times, after: Times) -> int:
    """Return the number of rollouts that a worker should run ahead.

    If workers and the main process both wait at times, rollouts come unevenly, and one more in reserve helps both. If
    the main process never waits and workers wait most of the time, they need not run ahead. That lowers the policy lag.

    Args:
        num_workers: Number of workers.
        before: Times at the begin of the measurement.
        after: Times at its end.

    >>> nothing = Times(0.0, 0.0, 0.0, 0.0)
    >>> uneven, slow_learner = Times(2.0, 8.0, 1.0, 9.0), Times(8.0, 2.0, 0.0, 10.0)
    >>> best_prefetch(4, nothing, uneven), best_prefetch(4, nothing, slow_learner)
    (2, 0)
    >>> best_prefetch(1, nothing, slow_learner)  # The only worker collects while the learner learns.
    1
    """
    waited, busy, main_waited, main_busy = (new - old for new, old in zip(after, before, strict=True))
    workers, main = _share(waited, busy), _share(main_waited, main_busy)
    if workers > MUCH and main > MUCH:
        return MAX_PREFETCH
    if workers > MOST and main < LITTLE and num_workers > 1:
        return 0
    return FIRST


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest > 0.0 else 0.0


class PrefetchChoice:
    """Measures the first rollouts of a pool, and then sets the number of rollouts that workers run ahead.

    Args:
        num_workers: Number of workers.
        scheduler: Scheduler that begins with :data:`FIRST`.
        counters: Counters of the pool.
    """

    def __init__(self, num_workers: int, scheduler: Dispatch, counters: Counters) -> None:
        self._num_workers, self._scheduler, self._counters = num_workers, scheduler, counters
        self._rollouts = 0
        self._before: Times | None = None

    def note(self) -> bool:
        """Note that a rollout was yielded. Return whether the number is chosen."""
        self._rollouts += 1
        if self._rollouts == SKIPPED * self._num_workers:
            self._before = self._times()
        elif self._before is not None and self._rollouts == (SKIPPED + MEASURED) * self._num_workers:
            self._scheduler.run_ahead(best_prefetch(self._num_workers, self._before, self._times()))
            return True
        return False

    def _times(self) -> Times:
        found = self._counters.statistics()
        waited = found.driver_seconds.get("waiting", 0.0)
        return Times(found.waiting_seconds, found.busy_seconds, waited, sum(found.driver_seconds.values()) - waited)
