"""Step buffers of workers on hosts: transfer of their rows as raw bytes, and both of its ends.

The step buffer of the main process has all rows. A worker on a host has a step buffer with the same layout at the same
offset, and uses only its own rows of it. Requests are transferred for all rows, answers row by row.
"""

from __future__ import annotations

import select
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.errors import ConfigurationError, ProtocolError
from parenv.memory.layout import Field
from parenv.memory.maps import StepBufferMap
from parenv.memory.order import fence
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot, status_slot, take_status_slot
from parenv.memory.step_signals import StepSignals
from parenv.placement.base import Arrived
from parenv.placement.local import LocalPlacement
from parenv.process.wake_up import WakeUp, WakeUps, WorkerWakeUp
from parenv.protocol.frames import Sender
from parenv.remote.host_messages import CHUNK_BYTES, Answers, Requests, RowPlan

REQUESTED = ("requested", "actions")
ANSWERED = ("finished", "info_kinds", "rewards", "terminated", "truncated", "observations")


def row_plan(step_buffer: StepBufferMap, worker: int) -> RowPlan:
    """Return the location of a worker's rows in a step buffer."""
    (infos,) = _columns(step_buffer, worker, ("infos",))
    return RowPlan(
        share=step_buffer.shares[worker],
        memory_bytes=step_buffer.offset + step_buffer.spec.fields()[1],
        requests=_columns(step_buffer, worker, REQUESTED),
        answers=_columns(step_buffer, worker, ANSWERED),
        infos=infos,
    )


def _columns(step_buffer: StepBufferMap, worker: int, names: Sequence[str]) -> list[list[int]]:
    """Return ``[offset, bytes per row]`` of each leaf of these fields, in the order of the names."""
    first, fields = sum(step_buffer.shares[:worker]), _fields(step_buffer, names)
    return [[step_buffer.offset + field.offset + first * field.row_bytes, field.row_bytes] for field in fields]


def _fields(step_buffer: StepBufferMap, names: Sequence[str]) -> list[Field]:
    fields = (field for field in step_buffer.spec.fields()[0] if field.name[0] in names)
    return sorted(fields, key=lambda field: (names.index(field.name[0]), field.name[1]))


class WorkerRows:
    """The rows of one worker, in the main process or on a host.

    Args:
        memory: Memory with the step buffer.
        plan: Location of the rows, from :func:`row_plan`.

    Attributes:
        plan: Location of the rows.
        row_bytes: Maximum size of one answered row.
    """

    def __init__(self, memory: Any, plan: RowPlan) -> None:
        def column(offset: int, row_bytes: int) -> Any:
            return np.ndarray((plan.share, row_bytes), np.uint8, memory, offset)

        self.plan = plan
        self._share = plan.share
        self._requests = [column(*one) for one in plan.requests]
        self._answers = [column(*one) for one in plan.answers]
        self._infos = column(*plan.infos)
        self._finished = self._answers[0].view("<i8")[:, 0]
        self._kinds = self._answers[1].view("<i4")[:, 0]
        self.row_bytes = sum(one.shape[1] for one in (*self._answers, self._infos))
        self._seen = self._finished.copy()

    def requests(self) -> memoryview:
        """Return a copy of the requests to all rows."""
        return np.concatenate([column.reshape(-1) for column in self._requests]).data

    def write_requests(self, data: memoryview) -> None:
        """Write the requests that :meth:`requests` has returned in the main process."""
        block = np.frombuffer(data, np.uint8)
        end = len(block)
        # A worker may be awake, and serve a request as soon as it has a number. So the numbers come last.
        for column in self._requests[::-1]:
            fence()
            column.reshape(-1)[:] = block[end - column.size : end]
            end -= column.size

    def forget(self) -> None:
        """Forget the requests to an earlier process, and treat all later answers as new, whatever their number."""
        # A request that killed the earlier process is unfinished, and the next process would serve it again.
        self._requests[0][:] = 0
        fence()
        self._finished[:] = -1
        self._kinds[:] = 0
        self._seen = self._finished.copy()

    def answers(self, most_bytes: int) -> list[tuple[list[int], memoryview]]:
        """Return the answers since the last call: row numbers within the worker, and the bytes of these rows.

        Args:
            most_bytes: Maximum size of the bytes, unless a single row has more.
        """
        # The worker writes a row before its number. Rows that are copied after the numbers are at least as new.
        finished = self._finished.copy()
        fence()
        changed = np.flatnonzero(finished != self._seen)
        self._seen = finished
        each = max(1, most_bytes // self.row_bytes)
        return [self._copied(changed[i : i + each], finished) for i in range(0, len(changed), each)]

    def write_answers(self, rows: Any, data: memoryview) -> None:
        """Write the answers that :meth:`answers` has returned on a host.

        Args:
            rows: Row numbers within the worker.
            data: Bytes of the rows.

        Raises:
            ProtocolError: A row is not a row of the worker.
            ValueError: The data do not have the size of these rows.
        """
        if min(rows) < 0 or max(rows) >= self._share:
            raise ProtocolError(f"rows must be numbers from 0 to {self._share - 1}, got {min(rows)} to {max(rows)}")
        n, block = len(rows), np.frombuffer(data, np.uint8)
        parts, begin = [], 0
        for column in self._answers:
            parts.append(block[begin : begin + n * column.shape[1]].reshape(n, column.shape[1]))
            begin += parts[-1].size
        with_infos = np.array(rows)[parts[1].view("<i4")[:, 0] > 0]
        self._infos[with_infos] = block[begin:].reshape(len(with_infos), self._infos.shape[1])
        # The columns are written in reverse, so that the numbers of finished requests come last.
        for column, part in zip(self._answers[::-1], parts[::-1], strict=True):
            column[rows] = part

    def _copied(self, rows: Any, finished: Any) -> tuple[list[int], memoryview]:
        where = slice(None) if len(rows) == self._share else rows
        parts = [column[where].reshape(-1) for column in self._answers]
        # The worker may finish further requests meanwhile. The numbers must be those that were read before the rows.
        parts[0], parts[1] = finished[rows].view(np.uint8), parts[1].copy()
        with_infos = rows[parts[1].view("<i4") > 0]
        return rows.tolist(), np.concatenate([*parts, self._infos[with_infos].reshape(-1)]).data


HOSTS = -1
"""Returned by :class:`HostsPoller` in place of a descriptor when a host has sent something."""


class HostNotifier:
    """The wake-up of a worker on a host: ``notify`` sends the requests there."""

    def __init__(self, notify: Callable[[], object]) -> None:
        self.notify = notify

    def close(self) -> None:
        """Do nothing: the host closes the wake-up."""


class HostsPoller:
    """Waits for hosts, and for a descriptor that workers on this machine make readable.

    Args:
        wait: The placement's ``wait``.
        events: Queue of the placement, which keeps the events of ``wait`` for its next call.
        local: Placement of the workers on this machine.
        descriptor: Descriptor of the wake-up of the main process.
    """

    def __init__(
        self, wait: Callable[[float], list[Arrived]], events: deque[Arrived], local: LocalPlacement, descriptor: int
    ) -> None:
        self._wait, self._events, self._local, self._descriptor = wait, events, local, descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def poll(self, timeout_ms: float, /) -> list[tuple[int, int]]:
        """Wait for the descriptor or for events, up to a limit.

        Returns:
            The descriptor if it is readable, and :data:`HOSTS` if there are events. Answers of hosts are written to the
            step buffer and are not events.
        """
        # Other waits must not watch the descriptor: they do not read it, and would return at once.
        self._local.watch(self._descriptor)
        try:
            self._events.extend(self._wait(timeout_ms / 1000.0))
        finally:
            self._local.unwatch(self._descriptor)
        return self._poll.poll(0) + [(HOSTS, select.POLLIN)] * bool(self._events)


class StepBuffers:
    """Transfer between the driver's step buffer and the step buffers of hosts.

    Args:
        num_local: Number of workers on this machine.
        max_message_bytes: Maximum size of a message of a host.

    Attributes:
        used: Whether workers have step buffers and wake-ups.
        rows: Rows of each worker on a host, by its index.
    """

    def __init__(self, num_local: int, max_message_bytes: int) -> None:
        self._num_local, self._max_message_bytes = num_local, max_message_bytes
        self.used = False
        self.rows: dict[int, WorkerRows] = {}

    def lay_out(self, step_buffer: StepBufferMap) -> None:
        """Set the location of the driver's step buffer.

        Raises:
            ConfigurationError: A row is larger than a message may be.
        """
        for worker in range(self._num_local, len(step_buffer.shares)):
            rows = WorkerRows(step_buffer.memory, row_plan(step_buffer, worker))
            if rows.row_bytes > self._max_message_bytes:
                raise ConfigurationError(
                    "observation, reward and info of a sub-environment must have at most "
                    f"max_message_bytes={self._max_message_bytes:,} bytes, got {rows.row_bytes:,}. Raise "
                    "RemotePlacement.max_message_bytes."
                )
            self.rows[worker] = rows

    def requests(self, worker: int) -> Requests:
        """Return the current requests to a worker."""
        return Requests(self.rows[worker].requests())

    def take(self, head: Any, worker: int, answers: Answers) -> None:
        """Write answers to the driver's step buffer, as a worker on this machine would.

        Raises:
            ProtocolError: A row is not a row of the worker.
        """
        self.rows[worker].write_answers(answers.rows, answers.data)
        take_status_slot(head, worker, answers.status_slot)


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
        # The host forwards the rows of each worker as soon as they are finished.
        self._signals = StepSignals(self._head)
        self._signals.sleeping[0] = 1
        self._signals.expect(0)
        self._wake_ups: dict[Sender, WorkerWakeUp] = {}
        self._rows: dict[Sender, WorkerRows] = {}

    def start(self, sender: Sender) -> None:
        """Prepare for a new process of a worker."""
        for before in [other for other in self._wake_ups if other.worker == sender.worker]:
            self._wake_ups.pop(before).close()
            self._rows.pop(before, None)
        self._wake_ups[sender] = self._local.wake_up(sender.worker, WakeUps(self._head, futexes=False))
        status = StatusSlot(self._head, sender.worker)
        # The counters of the former process must not be sent as counters of the new one.
        status.said[0] = status.has_infos[0] = 0

    def obey(self, sender: Sender, message: RowPlan | Requests) -> None:
        """Allocate a worker's rows, or forward requests for them unless this process is gone.

        Raises:
            MemoryError: The memory cannot be allocated.
        """
        if isinstance(message, RowPlan):
            self._rows[sender] = self._lay_out(message)
        elif sender in self._rows:
            self._rows[sender].write_requests(message.data)
            self._wake_ups[sender].notify()

    def answers(self) -> Iterator[tuple[Sender, Answers]]:
        """Yield the answers of workers since the last call."""
        # The wake-up is reset before the rows are read, so a worker that answers in between sets it again.
        if self._poll.poll(0):
            self.wake_up.take()
            self._signals.expect(0)
        for sender, of_one in self._rows.items():
            for rows, data in of_one.answers(CHUNK_BYTES):
                yield sender, Answers(rows, bytes(status_slot(self._head, sender.worker)), data)

    def close(self) -> None:
        """Close the wake-ups."""
        self._local.unwatch(self.wake_up.fileno())
        self.wake_up.close()
        for wake_up in self._wake_ups.values():
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
