"""The host's side of vector envs: step buffers and wake-ups of the workers on this host."""

from __future__ import annotations

import select
from collections.abc import Iterator

from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot, status_slot
from parenv.placement.local import LocalPlacement
from parenv.process.wake_up import WakeUp
from parenv.protocol.frames import Sender
from parenv.remote.host_messages import CHUNK_BYTES, Answers, Ring, RowPlan
from parenv.remote.step_buffer_transfer import WorkerRows


class HostRows:
    """Passes requests on to workers, and collects what they have answered.

    Args:
        memory: of the host.
        local: starts the workers.

    Attributes:
        wake_up: is rung by every worker that has answered.
    """

    def __init__(self, memory: SharedMemory, local: LocalPlacement) -> None:
        self._memory, self._local = memory, local
        self._head = memory.map()
        self.wake_up = WakeUp()
        self._poll = select.poll()
        self._poll.register(self.wake_up.fileno(), select.POLLIN)
        local.watch(self.wake_up.fileno())
        self._wake_ups: dict[Sender, WakeUp] = {}
        self._rows: dict[Sender, WorkerRows] = {}

    def start(self, sender: Sender) -> None:
        """Prepare for a process in a worker's place."""
        for before in [other for other in self._wake_ups if other.worker == sender.worker]:
            self._wake_ups.pop(before).close()
            self._rows.pop(before, None)
        self._wake_ups[sender] = self._local.wake_up(sender.worker)
        progress = StatusSlot(self._head, sender.worker)
        progress.said[0] = progress.has_infos[0] = 0

    def obey(self, sender: Sender, message: RowPlan | Ring) -> None:
        """Make room for a worker's rows, or pass on what is requested of them; nothing where that process is gone.

        Raises:
            MemoryError: there is not that much memory.
        """
        if isinstance(message, RowPlan):
            self._rows[sender] = self._lay_out(message)
        elif sender in self._rows:
            self._rows[sender].write_requests(message.data)
            self._wake_ups[sender].notify(message.number)

    def answers(self) -> Iterator[tuple[Sender, Answers]]:
        """What workers have answered since the last time."""
        if self._poll.poll(0):
            self.wake_up.take()
        for sender, of_one in self._rows.items():
            for rows, data in of_one.answers(CHUNK_BYTES):
                yield sender, Answers(rows, bytes(status_slot(self._head, sender.worker)), data)

    def close(self) -> None:
        """Close the wake-ups, for which nobody waits from now on."""
        self._local.unwatch(self.wake_up.fileno())
        for wake_up in (self.wake_up, *self._wake_ups.values()):
            wake_up.close()

    def _lay_out(self, plan: RowPlan) -> WorkerRows:
        self._memory.grow(plan.memory_bytes)
        for offset, row_bytes in (*plan.requests, *plan.answers):
            if row_bytes:
                self._memory.reserve(offset, plan.share * row_bytes)
        rows = WorkerRows(self._memory.map(), plan)
        # What another process has left there is not news, and what this one answers is, even by the same number.
        rows.forget()
        return rows
