"""Requests for steps: their numbers in the step buffer, and the wake-ups of the workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parenv.memory.order import fence
from parenv.memory.step_buffer import KINDS, STEP, StepBuffer
from parenv.placement.base import Notifier
from parenv.process.wake_up import WakeUps, WorkerWakeUp


class Requests:
    """Requests to the workers of a vector env.

    A worker serves a row as soon as it sees the number of a request with a kind, with or without a wake-up. So the
    number is written last, and rows of a worker that has ended get a kind only after another process took its place.

    Args:
        shares: Number of sub-environments of each worker.
        wake_ups: Wake-up of each worker.
        on_futexes: Wake-ups of the workers on this machine.

    Attributes:
        worker_of: Worker of each sub-environment, int64 ``[num_envs]``.
    """

    def __init__(self, shares: Sequence[int], wake_ups: Sequence[Notifier], on_futexes: WakeUps) -> None:
        self._wake_ups, self._on_futexes = list(wake_ups), on_futexes
        self._away: set[int] = set()
        self._sequence = 0
        self._step_buffer: StepBuffer | None = None
        self.worker_of = np.repeat(np.arange(len(shares)), shares)
        self._find_others()

    def add(self, wake_up: Notifier) -> None:
        """Add the wake-up of the last worker."""
        self._wake_ups.append(wake_up)
        self._find_others()

    def use(self, step_buffer: StepBuffer) -> None:
        """Write requests to this step buffer."""
        self._step_buffer, self._requested = step_buffer, step_buffer.requested

    def number(self, env_ids: Sequence[int] | slice) -> None:
        """Give some sub-environments the number of a request that no worker serves yet."""
        self._sequence += KINDS
        self._requested[env_ids] = self._sequence

    def of_all(self) -> None:
        """Request a step of every sub-environment."""
        if self._away:
            self.number(slice(None))
            self.of(range(len(self._requested)))
            return
        self._sequence += KINDS
        # A worker that is awake may see the number before the wake-up, and must then see the actions.
        fence()
        self._requested[:] = self._sequence + STEP
        # First those with a way to go. The last one is the share of this process, which only notes the request.
        for wake_up in self._others:
            wake_up.notify()
        self._on_futexes.notify_all()

    def of(self, env_ids: Sequence[int], kind: int = STEP) -> None:
        """Request a step, or the begin of an episode, of some sub-environments that have a number."""
        ids = np.asarray(env_ids, np.int64)
        workers = self.worker_of[ids]
        chosen = set(workers.tolist())
        if self._away:
            chosen -= self._away
            ids = ids[np.isin(workers, list(chosen))]
        fence()
        self._requested[ids] |= kind
        for worker in sorted(chosen):
            self._wake_ups[worker].notify()

    def workers(self, env_ids: Sequence[int]) -> list[int]:
        """Return the workers of these sub-environments that are not away."""
        return sorted(set(self.worker_of[list(env_ids)].tolist()) - self._away)

    def leave_out(self, worker: int) -> None:
        """Send no requests to a worker that has ended, and keep its successor from serving the requests to it."""
        self._away.add(worker)
        if self._step_buffer is not None:
            rows = self.worker_of == worker
            finished = rows & (self._step_buffer.finished == self._requested)
            self._requested[rows] -= self._requested[rows] % KINDS
            self._step_buffer.finished[finished] = self._requested[finished]

    def take_in(self, worker: int) -> None:
        """Send requests to a worker again whose process was replaced. No request to it counts as finished."""
        assert self._step_buffer is not None
        self._away.discard(worker)
        rows = self.worker_of == worker
        # The results of the old process are lost. The new one may be asked for the same reset at once.
        self._step_buffer.finished[rows] = self._requested[rows] - 1

    def put(self, worker: int, wake_up: Notifier) -> None:
        """Replace the wake-up of a worker."""
        self._wake_ups[worker].close()
        self._wake_ups[worker] = wake_up
        self._find_others()

    def close(self) -> None:
        """Close all wake-ups."""
        for wake_up in self._wake_ups:
            wake_up.close()

    def _find_others(self) -> None:
        self._others = [one for one in self._wake_ups if not isinstance(one, WorkerWakeUp) or not one.has_futex]
