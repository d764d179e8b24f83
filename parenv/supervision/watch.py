"""Which workers hang, by what is asked of them and what they show of themselves."""

from __future__ import annotations

import math
from collections.abc import Callable

from parenv.options import WorkerOptions
from parenv.placement.base import KILL_TIMEOUT_S
from parenv.supervision.watchdog import Watchdog
from parenv.supervision.workers import Workers

KILLED, STARTING = "killed", "starting"
_LIMITS = {"reset": "reset_timeout_s", "making the environment": "reset_timeout_s", STARTING: "start_timeout_s"}


class Watch:
    """Looks at all workers from time to time.

    Args:
        workers: the workers.
        options: how long they may take.
        asked: see :class:`~parenv.supervision.supervisor.Product`.
        changing: whether a process is to end, :data:`KILLED`, or to begin, :data:`STARTING`; empty where it is at work.
        processes: whether they are processes; one that is not cannot be watched.

    Attributes:
        next_s: when to look again, on the monotonic clock.
    """

    def __init__(
        self,
        workers: Workers,
        options: WorkerOptions,
        asked: Callable[[int], object],
        changing: Callable[[int], str],
        processes: bool,
    ) -> None:
        self._workers, self._options, self._asked, self._changing = workers, options, asked, changing
        limits = [options.start_timeout_s, options.step_timeout_s, options.reset_timeout_s]
        self._watchdog = Watchdog(len(workers.shares), min(limit for limit in limits if limit is not None))
        self.next_s = -math.inf if processes else math.inf

    def hung(self, now: float) -> list[tuple[int, str]]:
        """The workers that hang, each with its limit as the user set it."""
        if now < self.next_s:
            return []
        self.next_s = now + self._watchdog.interval_s
        return [(worker, limit) for worker in range(len(self._workers.shares)) if (limit := self._look(worker, now))]

    def _look(self, worker: int, now: float) -> str:
        asked, changing = self._asked(worker), self._changing(worker)
        doing = changing or self._workers.busy_with(worker, asked is not None)
        name, limit_s = _LIMITS.get(doing, "step_timeout_s"), math.inf
        if doing == KILLED:
            # Of one on a host that says nothing it is known once the host is lost.
            limit_s = KILL_TIMEOUT_S + 2.0 * self._workers.placement.silence_s
        elif doing:
            limit_s = getattr(self._options, name) or math.inf
        generation = self._workers.generation(worker)
        token = (changing, generation) if changing else (self._workers.liveness_token(worker), asked)
        return f"{name}={limit_s:g}" if self._watchdog.look(worker, now, token, limit_s) else ""
