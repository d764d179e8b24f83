"""Which workers hang, by what is asked of them and what they show of themselves."""

from __future__ import annotations

import math
from collections.abc import Callable

from parenv.options import WorkerOptions
from parenv.supervision.watchdog import Watchdog
from parenv.supervision.workers import Workers

_RESETTING = ("reset", "making the environment")


class Watch:
    """Looks at all workers from time to time.

    Args:
        workers: the workers.
        options: how long they may take.
        asked: see :class:`~parenv.supervision.supervisor.Product`.
        processes: whether they are processes; one that is not cannot be watched.

    Attributes:
        next_s: when to look again, on the monotonic clock.
    """

    def __init__(
        self, workers: Workers, options: WorkerOptions, asked: Callable[[int], object], processes: bool
    ) -> None:
        self._workers, self._options, self._asked = workers, options, asked
        limits = [limit for limit in (options.step_timeout_s, options.reset_timeout_s) if limit is not None]
        self._watchdog = Watchdog(len(workers.shares), min(limits, default=math.inf))
        self.next_s = -math.inf if processes else math.inf

    def hung(self, now: float) -> list[tuple[int, str]]:
        """The workers that hang, each with its limit as the user set it."""
        if now < self.next_s:
            return []
        self.next_s = now + self._watchdog.interval_s
        return [(worker, limit) for worker in range(len(self._workers.shares)) if (limit := self._look(worker, now))]

    def _look(self, worker: int, now: float) -> str:
        asked = self._asked(worker)
        doing = self._workers.busy_with(worker, asked is not None)
        name = "reset_timeout_s" if doing in _RESETTING else "step_timeout_s"
        limit_s = getattr(self._options, name) if doing else None
        token = self._workers.liveness_token(worker), asked
        hangs = self._watchdog.look(worker, now, token, math.inf if limit_s is None else limit_s)
        return f"{name}={limit_s:g}" if hangs else ""
