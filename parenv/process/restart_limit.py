"""Decides whether and when a dead worker is started again."""

from __future__ import annotations

from collections import deque

from parenv.options import RestartPolicy


class RestartLimit:
    """Counts the deaths of each worker.

    Args:
        policy: Limits of restarts, or ``None`` for no restarts.
        num_workers: Number of workers.

    >>> supervisor = RestartLimit(RestartPolicy(max_restarts=2, window_s=60.0, backoff_s=0.5), num_workers=1)
    >>> [supervisor.died(0, now_s) for now_s in (0.0, 1.0, 2.0)]
    [0.0, 0.5, None]
    """

    def __init__(self, policy: RestartPolicy | None, num_workers: int) -> None:
        self._policy = policy
        self._deaths: list[deque[float]] = [deque() for _ in range(num_workers)]

    def died(self, worker: int, now_s: float) -> float | None:
        """Count a death.

        Args:
            worker: Index of the worker.
            now_s: Time of the death in seconds, on a monotonic clock.

        Returns:
            Seconds to wait before the restart, or ``None`` if the worker is not restarted.
        """
        policy, deaths = self._policy, self._deaths[worker]
        if policy is None:
            return None
        while deaths and now_s - deaths[0] >= policy.window_s:
            deaths.popleft()
        if len(deaths) >= policy.max_restarts:
            return None
        deaths.append(now_s)
        # The first death may be a single event, so its restart does not wait.
        again = len(deaths) - 1
        return 0.0 if not again else min(policy.max_backoff_s, policy.backoff_s * 2.0 ** min(again - 1, 1000))
