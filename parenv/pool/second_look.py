"""Look, after some seconds of rollouts, whether a pool whose number of workers was not given needs more of them."""

from __future__ import annotations

import time

from parenv.pool.pool_plan import Plan
from parenv.pool.statistics import Counters, PoolStatistics
from parenv.process.cores import usable_cores
from parenv.process.processor_time import processor_time
from parenv.supervision.warning import Warner
from parenv.supervision.workers import Workers
from parenv.vector.choice import MOST_WAITING_WORKERS
from parenv.vector.second_look import LEAST_GAIN

LOOK_S = 3.0
"""Seconds of rollouts before the look."""
LEAST_ROLLOUTS = 2
"""Minimum number of rollouts of each worker before the look."""


def gain_of_more_workers(statistics: PoolStatistics, queued_s: float, num_workers: int, most: int) -> float:
    """Return how many times as fast the loop would be with more workers, because steps wait.

    More workers share the time in which steps wait for something else than a core. All other times stay the same.

    Args:
        statistics: Statistics of the pool.
        queued_s: Seconds for which workers waited for a core, summed over them.
        num_workers: Number of workers.
        most: Number of workers with which to compare.

    >>> waiting = PoolStatistics(environment_seconds=9.0, acting_seconds=1.0, processor_seconds=1.0,
    ...                          driver_seconds={"waiting": 10.0, "learning": 0.0})
    >>> round(gain_of_more_workers(waiting, queued_s=0.0, num_workers=1, most=9), 1)
    5.0
    """
    busy_s = statistics.environment_seconds + statistics.acting_seconds
    busy_s += statistics.learning_seconds + statistics.committing_seconds
    total_s, idle_s = sum(statistics.driver_seconds.values()), statistics.driver_seconds.get("waiting", 0.0)
    if not busy_s or not total_s:
        return 1.0
    waits = max(0.0, busy_s - statistics.processor_seconds - queued_s) / busy_s
    return total_s / (total_s - idle_s * waits * (1.0 - num_workers / most))


class PoolSecondLook:
    """Warns once if steps wait and the pool has fewer workers than such steps need.

    Args:
        workers: Workers of the pool.
        most: Number of workers that the warning names.
        counters: Counters of the pool.
    """

    def __init__(self, workers: Workers, most: int, counters: Counters) -> None:
        self._workers, self._most, self._counters = workers, most, counters
        self._rollouts, self._begin_s = 0, 0.0

    def note(self) -> bool:
        """Note that a rollout was yielded. Return whether the look is over."""
        self._rollouts += 1
        now, num_workers = time.perf_counter(), len(self._workers.shares)
        if self._rollouts == 1:
            self._begin_s = now
        if now - self._begin_s < LOOK_S or self._rollouts < LEAST_ROLLOUTS * num_workers:
            return False
        times = [processor_time(self._workers.pid(worker)) for worker in range(num_workers)]
        queued_s = sum(one.queued_s for one in times if one is not None)
        gain = gain_of_more_workers(self._counters.statistics(), queued_s, num_workers, self._most)
        if None not in times and gain >= LEAST_GAIN:
            Warner()(
                f"the loop would be about {gain:.1f} times as fast with num_workers={self._most}, because the steps of "
                f"the environments wait. Pass this argument, or num_workers={num_workers} to keep the setting."
            )
        return True


def second_look(plan: Plan, workers: Workers, counters: Counters) -> PoolSecondLook | None:
    """Return a second look for a pool on this machine whose number of workers was not given, otherwise ``None``."""
    num_envs, num_workers = sum(plan.job.shares), len(plan.job.shares)
    most = min(num_envs, max(usable_cores(), MOST_WAITING_WORKERS))
    return PoolSecondLook(workers, most, counters) if plan.chooses_workers and most > num_workers else None
