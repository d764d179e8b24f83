"""The step buffer of the main process for workers on hosts: requests leave it, and answers are written into it."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import Any

from parenv.errors import ConfigurationError, ProtocolError
from parenv.memory.kinds import is_kind, kind_numbers
from parenv.memory.maps import StepBufferMap
from parenv.memory.status_slot import take_status_slot
from parenv.placement.base import Event
from parenv.placement.local import LocalPlacement
from parenv.protocol.messages import SideData
from parenv.remote.host_messages import Answers, Requests
from parenv.remote.step_buffer_transfer import WorkerRows, flags_of, row_plan

HOSTS = -1
"""Returned by :class:`HostsPoller` in place of a descriptor when a host has sent something."""


class HostNotifier:
    """The wake-up of a worker on a host: ``notify`` sends a number there."""

    def __init__(self, notify: Callable[[int], object]) -> None:
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
        self, wait: Callable[[float], list[Event]], events: deque[Event], local: LocalPlacement, descriptor: int
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
        self._step_buffer: StepBufferMap | None = None
        self.rows: dict[int, WorkerRows] = {}

    def lay_out(self, step_buffer: StepBufferMap) -> None:
        """Set the location of the driver's step buffer.

        Raises:
            ConfigurationError: A row is larger than a message may be.
        """
        self._step_buffer = step_buffer
        for worker in range(self._num_local, len(step_buffer.shares)):
            rows = WorkerRows(step_buffer.memory, row_plan(step_buffer, worker), flags_of(step_buffer))
            if rows.row_bytes > self._max_message_bytes:
                raise ConfigurationError(
                    f"a sub-environment's observation, reward and info have {rows.row_bytes:,} bytes, more than "
                    f"RemotePlacement(max_message_bytes={self._max_message_bytes:,}) lets cross: raise it"
                )
            self.rows[worker] = rows

    def requests(self, worker: int, number: int) -> Requests:
        """Return the current requests to a worker, with the number for its wake-up."""
        return Requests(number, self.rows[worker].requests())

    def take(self, head: Any, worker: int, answers: Answers) -> None:
        """Write answers to the driver's step buffer, as a worker on this machine would.

        Args:
            head: Memory of the driver, with the status slot of the worker.
            worker: Index of the worker.
            answers: Message of the host.

        Raises:
            ProtocolError: The answers do not fit the requests to this worker. Nothing was written.
        """
        if worker not in self.rows or self._step_buffer is None:
            raise ProtocolError(f"worker {worker} has no rows to answer")
        self.rows[worker].write_answers(answers.rows, answers.data, kind_numbers(worker, len(self._step_buffer.shares)))
        take_status_slot(head, worker, answers.status_slot)

    def check(self, worker: int, side_data: SideData) -> None:
        """Check side data of a host.

        Raises:
            ProtocolError: The data are about rows of another worker, or contain an invalid kind of info.
        """
        if worker not in self.rows or self._step_buffer is None:
            raise ProtocolError(f"worker {worker} has no rows")
        step_buffer = self._step_buffer
        first = sum(step_buffer.shares[:worker])
        mine, numbers = range(first, first + step_buffer.shares[worker]), kind_numbers(worker, len(step_buffer.shares))
        for number, kind in side_data.kinds:
            if number not in numbers or not is_kind(kind, step_buffer.spec.info_bytes):
                raise ProtocolError("a kind of info is invalid")
        if not all(env_id in mine for env_id, _ in (*side_data.infos, *side_data.observations)):
            raise ProtocolError(f"side data are not about a sub-environment of worker {worker}")
