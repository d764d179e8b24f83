"""Step buffers and wake-ups of the workers on a host, for vector envs."""

from __future__ import annotations

import select
from collections.abc import Iterator

from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot, status_slot
from parenv.memory.step_signals import StepSignals
from parenv.placement.local import LocalPlacement
from parenv.process.futex import AVAILABLE
from parenv.process.wake_up import FutexWakeUp, FutexWakeUps, WakeUp
from parenv.protocol.frames import Sender
from parenv.remote.host_messages import CHUNK_BYTES, Answers, Requests, RowPlan
from parenv.remote.step_buffer_transfer import WorkerRows


class HostRows:
    """Forwards requests to workers, and collects their answers.

    Args:
        memory: Shared memory of the host.
        local: Placement of the workers on the host.

    Attributes:
        wake_up: Wake-up that every worker notifies after an answer.
    """

    def __init__(self, memory: SharedMemory, local: LocalPlacement) -> None:
        self._memory, self._local = memory, local
        self._head = memory.map()
        self.wake_up = WakeUp()
        self._poll = select.poll()
        self._poll.register(self.wake_up.fileno(), select.POLLIN)
        local.watch(self.wake_up.fileno())
        self._shared = FutexWakeUps(self._head) if AVAILABLE else None
        # The host forwards the rows of each worker as soon as they are there.
        signals = StepSignals(self._head)
        signals.sleeping[0] = 1
        signals.expect(0)
        self._wake_ups: dict[Sender, WakeUp | FutexWakeUp] = {}
        self._rows: dict[Sender, WorkerRows] = {}

    def start(self, sender: Sender) -> None:
        """Prepare for a new process of a worker."""
        for before in [other for other in self._wake_ups if other.worker == sender.worker]:
            self._wake_ups.pop(before).close()
            self._rows.pop(before, None)
        self._wake_ups[sender] = self._local.wake_up(sender.worker, self._shared)
        progress = StatusSlot(self._head, sender.worker)
        progress.said[0] = progress.has_infos[0] = 0

    def obey(self, sender: Sender, message: RowPlan | Requests) -> None:
        """Allocate a worker's rows, or forward requests for them unless this process is gone.

        Raises:
            MemoryError: The memory cannot be allocated.
        """
        if isinstance(message, RowPlan):
            self._rows[sender] = self._lay_out(message)
        elif sender in self._rows:
            self._rows[sender].write_requests(message.data)
            self._wake_ups[sender].notify(message.number)

    def answers(self) -> Iterator[tuple[Sender, Answers]]:
        """Yield the answers of workers since the last call."""
        if self._poll.poll(0):
            self.wake_up.take()
        for sender, of_one in self._rows.items():
            for rows, data in of_one.answers(CHUNK_BYTES):
                yield sender, Answers(rows, bytes(status_slot(self._head, sender.worker)), data)

    def close(self) -> None:
        """Close the wake-ups."""
        self._local.unwatch(self.wake_up.fileno())
        for wake_up in (self.wake_up, *self._wake_ups.values()):
            wake_up.close()

    def _lay_out(self, plan: RowPlan) -> WorkerRows:
        self._memory.grow(plan.memory_bytes)
        for offset, row_bytes in (*plan.requests, *plan.answers):
            if row_bytes:
                self._memory.reserve(offset, plan.share * row_bytes)
        rows = WorkerRows(self._memory.map(), plan)
        # Answers of an earlier process are not new. Answers of this process are new, even if the number is the same.
        rows.forget()
        return rows
