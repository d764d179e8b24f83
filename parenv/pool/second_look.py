"""Look, after some seconds of rollouts, whether a pool whose number of workers was not given needs more of them."""

from __future__ import annotations

import time
from typing import NamedTuple

from parenv.crew.warning import Warner
from parenv.crew.workers import Workers
from parenv.platform import system
from parenv.pool.dispatch import Dispatch, Scheduler
from parenv.pool.pool_plan import Plan
from parenv.pool.prefetch_choice import PrefetchChoice
from parenv.pool.statistics import Counters
from parenv.process.cores import usable_cores
from parenv.vector.choice import MOST_WAITING_WORKERS
from parenv.vector.second_look import LEAST_GAIN

LOOK_S = 3.0
"""Length of the look in seconds."""
LEAST_ROLLOUTS = 2
"""Minimum number of rollouts of each worker in the look."""


class Times(NamedTuple):
    """Seconds so far.

    Args:
        busy: Seconds that workers collected, summed over them.
        computed: Processor seconds of this.
        queued: Seconds for which workers waited for a core, summed over them.
        loop: Seconds of the main process.
        idle: Seconds of the main process in which it waited for rollouts.
    """

    busy: float
    computed: float
    queued: float
    loop: float
    idle: float


def gain_of_more_workers(before: Times, after: Times, num_workers: int, most: int) -> float:
    """Return how many times as fast the loop would be with more workers, because steps wait.

    More workers share the time in which steps wait for something else than a core. All other times stay the same.

    Args:
        before: Times at the begin of the look.
        after: Times at its end.
        num_workers: Number of workers.
        most: Number of workers with which to compare.

    >>> nothing, waiting = Times(0.0, 0.0, 0.0, 0.0, 0.0), Times(10.0, 1.0, 0.0, loop=10.0, idle=10.0)
    >>> round(gain_of_more_workers(nothing, waiting, num_workers=1, most=9), 1)
    5.0
    """
    busy, computed, queued, loop, idle = (new - old for new, old in zip(after, before, strict=True))
    if busy <= 0.0 or loop <= 0.0:
        return 1.0
    # The queue of a worker that was replaced meanwhile begins at 0 again.
    waits = max(0.0, busy - computed - max(0.0, queued)) / busy
    return loop / (loop - idle * waits * (1.0 - num_workers / most))


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
        self._before: Times | None = None

    def note(self) -> bool:
        """Note that a rollout was yielded. Return whether the look is over."""
        self._rollouts += 1
        now, num_workers = time.perf_counter(), len(self._workers.shares)
        if self._rollouts == num_workers:  # The first rollouts find cold caches.
            self._begin_s, self._before = now, self._times()
        if now - self._begin_s < LOOK_S or self._rollouts < (1 + LEAST_ROLLOUTS) * num_workers:
            return False
        after = self._times()
        if self._before is None or after is None:
            return True
        gain = gain_of_more_workers(self._before, after, num_workers, self._most)
        if gain >= LEAST_GAIN:
            Warner()(
                f"the loop would be about {gain:.1f} times as fast with num_workers={self._most}, because the steps of "
                f"the environments wait. Pass this argument, or num_workers={num_workers} to keep the setting."
            )
        return True

    def _times(self) -> Times | None:
        """Return the times so far, or ``None`` if the system does not count them."""
        found = self._counters.statistics()
        times = [system.processor_time(self._workers.pid(worker)) for worker in range(len(self._workers.shares))]
        queued = [one.queued_s for one in times if one is not None]
        if len(queued) < len(times):
            return None
        loop, idle = sum(found.driver_seconds.values()), found.driver_seconds.get("waiting", 0.0)
        return Times(found.busy_seconds, found.processor_seconds, sum(queued), loop, idle)


def looks(
    plan: Plan, workers: Workers, scheduler: Scheduler, counters: Counters
) -> list[PrefetchChoice | PoolSecondLook]:
    """Return what looks at the first rollouts of a pool: to choose ``prefetch="auto"``, and at its number of workers.

    A number of workers that the user has given is not looked at, and neither are workers of other machines. A worker
    whose environments are in another interpreter sleeps while that one computes, so its times do not show a wait.
    """
    num_envs, num_workers = sum(plan.job.shares), len(plan.job.shares)
    found: list[PrefetchChoice | PoolSecondLook] = []
    if plan.chooses_prefetch and isinstance(scheduler, Dispatch):
        found.append(PrefetchChoice(num_workers, scheduler, counters))
    most = min(num_envs, max(usable_cores(), MOST_WAITING_WORKERS))
    if plan.chooses_workers and plan.job.options.python is None and most > num_workers:
        found.append(PoolSecondLook(workers, most, counters))
    return found
