"""Detection of workers that hang, from their status slots and the requests that they have not answered."""

from __future__ import annotations

import math
from collections.abc import Callable

from parenv.crew.watchdog import Watchdog
from parenv.crew.workers import Workers
from parenv.options import WorkerOptions
from parenv.placement.base import KILL_TIMEOUT_S

KILLED, STARTING = "killed", "starting"
_LIMITS = {"reset": "reset_timeout_s", "making the environment": "reset_timeout_s", STARTING: "start_timeout_s"}


class Watch:
    """Looks at all workers from time to time.

    Args:
        workers: Workers.
        options: Options of the workers, with their limits.
        processes: Whether the workers are processes. The worker in this process cannot be watched.

    Attributes:
        next_s: Time of the next look on the monotonic clock.
    """

    def __init__(self, workers: Workers, options: WorkerOptions, processes: bool) -> None:
        self._workers, self._options = workers, options
        limits = [options.start_timeout_s, options.step_timeout_s, options.reset_timeout_s]
        self._watchdog = Watchdog(len(workers.shares), min(limit for limit in limits if limit is not None))
        self.next_s = -math.inf if processes else math.inf

    def hung(self, now: float, asked: Callable[[int], object], changing: Callable[[int], str]) -> list[tuple[int, str]]:
        """Return the workers that hang, each with its limit in words of the user.

        Args:
            now: Present time on the monotonic clock.
            asked: See :class:`~parenv.crew.crew.Product`.
            changing: Function of a worker that returns :data:`KILLED` if it must end, :data:`STARTING` if it starts,
                and an empty text otherwise.
        """
        if now < self.next_s:
            return []
        self.next_s = now + self._watchdog.interval_s
        looks = ((w, self._look(w, now, asked(w), changing(w))) for w in range(len(self._workers.shares)))
        return [(worker, limit) for worker, limit in looks if limit]

    def _look(self, worker: int, now: float, asked: object, changing: str) -> str:
        doing = changing or self._workers.busy_with(worker, asked is not None)
        name, limit_s = _LIMITS.get(doing, "step_timeout_s"), math.inf
        if doing == KILLED:
            # The end of a worker on a silent host is known only when the host is lost.
            limit_s = KILL_TIMEOUT_S + 2.0 * self._workers.placement.silence_s
        elif doing:
            limit_s = getattr(self._options, name) or math.inf
        # A process that starts after another one that has not finished its start gets the whole limit.
        generation = self._workers.generation(worker)
        token = (changing, generation) if changing else (self._workers.liveness_token(worker), asked)
        return f"{name}={limit_s:g}" if self._watchdog.look(worker, now, token, limit_s) else ""
