"""Watchdog that decides which worker makes no progress. It is pure."""

from __future__ import annotations

import math

LOOKS_PER_LIMIT = 20
MIN_INTERVAL_S = 0.01


class Watchdog:
    """Measures for how long each worker has shown the same liveness token.

    Only the time between frequent looks counts. A main process that learns for a minute, or a machine that was
    suspended, does not make a worker appear hung.

    Args:
        num_workers: Number of workers.
        shortest_limit_s: Shortest limit in seconds.

    >>> watchdog = Watchdog(num_workers=1, shortest_limit_s=1.0)
    >>> [watchdog.look(0, now_s, "step 5", 1.0) for now_s in (0.0, 0.05, 60.0)]
    [False, False, False]
    >>> any(watchdog.look(0, 60.0 + tick / 20, "step 5", 1.0) for tick in range(20))
    True
    """

    def __init__(self, num_workers: int, shortest_limit_s: float) -> None:
        self.interval_s = max(MIN_INTERVAL_S, shortest_limit_s / LOOKS_PER_LIMIT)
        self._tokens: list[object] = [None] * num_workers
        self._looked_s = [-math.inf] * num_workers
        self._same_s = [0.0] * num_workers

    def look(self, worker: int, now_s: float, liveness_token: object, limit_s: float) -> bool:
        """Look at a worker, and return whether it hangs.

        Args:
            worker: Worker.
            now_s: Time in seconds on a clock that only goes forward.
            liveness_token: Value that changes with each operation of the worker.
            limit_s: Limit in seconds for the present operation. Infinite if no request is open.
        """
        passed_s, self._looked_s[worker] = now_s - self._looked_s[worker], now_s
        if liveness_token != self._tokens[worker] or limit_s == math.inf:
            self._tokens[worker], self._same_s[worker] = liveness_token, 0.0
            return False
        # A suspended machine, or a main process that learns for a minute, must not make a worker appear hung.
        self._same_s[worker] += min(passed_s, 2.0 * self.interval_s)
        return self._same_s[worker] >= limit_s
