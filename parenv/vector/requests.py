"""Requests for steps: wake-ups of the workers, and rings of orders in the step buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.memory.step_buffer import StepBuffer
from parenv.placement.base import Notifier
from parenv.process.wake_up import ALL, FutexWakeUp, FutexWakeUps


class Requests:
    """Requests to the workers of a vector env.

    Args:
        shares: Number of sub-environments of each worker.
        wake_ups: Wake-up of each worker.
        shared: Wake-ups of all workers that sleep on the futex. Default: no worker does.

    Attributes:
        away: Workers that have ended and are not back yet. They get no requests, because their rows begin new episodes.
        worker_of: Worker of each sub-environment, int64 ``[num_envs]``.
    """

    def __init__(self, shares: Sequence[int], wake_ups: Sequence[Notifier], shared: FutexWakeUps | None = None) -> None:
        self._shares, self._wake_ups, self._shared = shares, list(wake_ups), shared
        self._first = [sum(shares[:worker]) for worker in range(len(shares))]
        self._ordered = [0 for _ in shares]
        self.away: set[int] = set()
        self.worker_of = np.repeat(np.arange(len(shares)), shares)

    def add(self, wake_up: Notifier) -> None:
        """Add the wake-up of the last worker."""
        self._wake_ups.append(wake_up)

    def use(self, step_buffer: StepBuffer) -> None:
        """Use the rings of this step buffer."""
        self._find_others()
        self._rings = np.split(step_buffer.orders, np.cumsum(self._shares[:-1]))

    def of_all(self) -> None:
        """Request a step of every sub-environment."""
        if self._shared is None or self.away:
            for worker, wake_up in enumerate(self._wake_ups):
                if worker not in self.away:
                    wake_up.notify(ALL)
            return
        # First those with a way to go. The last one is the share of this process, which only notes the request.
        for wake_up in self._others:
            wake_up.notify(ALL)
        self._shared.notify_all()

    def of(self, env_ids: Sequence[int], reset: bool = False) -> None:
        """Request a step, or the begin of an episode, of some sub-environments."""
        ids = np.asarray(env_ids, np.int64)
        workers = self.worker_of[ids]
        for worker in sorted(set(workers.tolist()) - self.away):
            orders = ids[workers == worker] - self._first[worker]
            if len(orders) == self._shares[worker] and not reset:
                self._wake_ups[worker].notify(ALL)
            else:
                self._order(worker, ~orders if reset else orders)

    def workers(self, env_ids: Sequence[int]) -> list[int]:
        """Return the workers of these sub-environments that are not away."""
        return sorted(set(self.worker_of[list(env_ids)].tolist()) - self.away)

    def put(self, worker: int, wake_up: Notifier) -> None:
        """Replace the wake-up of a worker whose next process begins at the head of its ring."""
        self._wake_ups[worker].close()
        self._wake_ups[worker], self._ordered[worker] = wake_up, 0
        self._find_others()

    def close(self) -> None:
        """Close all wake-ups."""
        for wake_up in self._wake_ups:
            wake_up.close()

    def _find_others(self) -> None:
        self._others = [wake_up for wake_up in self._wake_ups if not isinstance(wake_up, FutexWakeUp)]

    def _order(self, worker: int, orders: Any) -> None:
        """Put orders into a worker's ring, which has one place for each of its rows."""
        ring, n = self._rings[worker], len(orders)
        begin = self._ordered[worker] % len(ring)
        fitting = min(n, len(ring) - begin)
        ring[begin : begin + fitting] = orders[:fitting]
        if fitting < n:
            ring[: n - fitting] = orders[fitting:]
        self._ordered[worker] += n
        self._wake_ups[worker].notify(n)
