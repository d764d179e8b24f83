"""Decides which workers are replaced, and when. It is pure: times are arguments, in seconds on a monotonic clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from parenv.crew.events import Lost
from parenv.errors import RestartLimitError
from parenv.options import RestartPolicy
from parenv.process.restart_limit import RestartLimit

MAX_DEATHS_KEPT = 1000


class Restarts:
    """State of each worker from its kill or its end until its successor is back.

    A worker is killed, then has ended, then is due, then starts, and then is back. It may be killed or end again while
    it starts. A worker that ends by itself was not killed.

    Args:
        policy: Limits of restarts, or ``None`` for no restarts.
        num_workers: Number of workers.

    Attributes:
        killed: Reason of each kill, until the worker has ended.
        starting: Workers whose successor has started and is not back.
        away: Workers that were killed or have ended, and are not back.
        deaths: Last reasons for the end of each worker.

    >>> restarts = Restarts(RestartPolicy(max_restarts=1), num_workers=1)
    >>> restarts.kill(0, TimeoutError("it hangs"))
    >>> lost = restarts.ended(0, ConnectionError("it has ended"))
    >>> lost.reason
    TimeoutError('it hangs')
    >>> restarts.replace(lost, now_s=5.0), restarts.begin_due(5.0), restarts.back(0)
    (None, [0], None)
    """

    def __init__(self, policy: RestartPolicy | None, num_workers: int) -> None:
        self._policy, self._limit = policy, RestartLimit(policy, num_workers)
        self._due: dict[int, float] = {}
        self.killed: dict[int, Exception] = {}
        self.starting: set[int] = set()
        self.away: set[int] = set()
        self.deaths: list[deque[Exception]] = [deque(maxlen=MAX_DEATHS_KEPT) for _ in range(num_workers)]

    @property
    def next_s(self) -> float:
        """Time at which the next worker is due."""
        return min(self._due.values(), default=math.inf)

    def kill(self, worker: int, reason: Exception) -> None:
        """Note that a worker is being killed. The first reason counts, because further errors follow from the kill."""
        self.away.add(worker)
        # The frames of its traceback would keep the memory of the pool.
        self.killed.setdefault(worker, reason.with_traceback(None))

    def ended(self, worker: int, error: Exception) -> Lost:
        """Note the end of a worker, and return its loss. The reason of a kill explains more than the signal."""
        self.away.add(worker)
        again = worker in self.starting
        self.starting.discard(worker)
        return Lost(worker, self.killed.pop(worker, error), again)

    def replace(self, lost: Lost, now_s: float, excused: bool = False, env_ids: Sequence[int] = ()) -> Exception | None:
        """Decide when a lost worker is due to start again.

        Args:
            lost: The loss.
            now_s: Present time.
            excused: Whether the restart neither waits nor counts.
            env_ids: Sub-environments of the worker, for the error.

        Returns:
            Error if it is not replaced.
        """
        worker, reason, _ = lost
        deaths, is_excused = self.deaths[worker], excused and self._policy is not None
        wait_s = 0.0 if is_excused else self._limit.died(worker, now_s)
        if wait_s is None:
            return RestartLimitError(worker, env_ids, [*deaths, reason]) if deaths else reason
        deaths.append(reason.with_traceback(None))
        self._due[worker] = now_s + wait_s
        return None

    def begin_due(self, now_s: float) -> list[int]:
        """Return the workers that are due, whose successors start now."""
        due = [worker for worker, due_s in self._due.items() if due_s <= now_s]
        for worker in due:
            del self._due[worker]
        self.starting.update(due)
        return due

    def back(self, worker: int) -> None:
        """Note that the successor of a worker is at work."""
        self.starting.discard(worker)
        self.away.discard(worker)
