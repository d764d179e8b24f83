"""The main process's side of vector envs on hosts: it sends requests and writes answers into its own step buffer."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import Any

from parenv.errors import ConfigurationError, ProtocolError
from parenv.memory.kinds import is_kind, kind_numbers
from parenv.memory.maps import BoardMap
from parenv.memory.status_slot import status_slot
from parenv.placement.base import Event
from parenv.placement.local import LocalPlacement
from parenv.protocol.messages import SideData
from parenv.remote.host_messages import Answers, Ring
from parenv.remote.step_buffer_transfer import WorkerRows, flags_of, row_plan

HOSTS = -1
"""Stands for hosts, which have no descriptor, where a descriptor stands for what is ready."""


class HostNotifier:
    """The wake-up of a worker on a host.

    Args:
        ring: sends a number there.
    """

    def __init__(self, ring: Callable[[int], object]) -> None:
        self.notify = ring

    def close(self) -> None:
        """The host has the wake-up, and closes it."""


class HostsPoller:
    """Waits for hosts, and for a descriptor that workers on this machine make readable.

    Args:
        wait: of the placement.
        events: of the placement, where what :attr:`wait` returns is kept for its next call.
        local: where workers on this machine run.
        descriptor: that one.
    """

    def __init__(
        self, wait: Callable[[float], list[Event]], events: deque[Event], local: LocalPlacement, descriptor: int
    ) -> None:
        self._wait, self._events, self._local, self._descriptor = wait, events, local, descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def poll(self, timeout_ms: float, /) -> list[tuple[int, int]]:
        """Wait up to the limit: the descriptor if it is readable, and :data:`HOSTS` if there are events.

        Answers of hosts are written onto the step buffer, and are no events.
        """
        # Only here: nobody reads it while something else is awaited, and what is readable ends every wait.
        self._local.watch(self._descriptor)
        try:
            self._events.extend(self._wait(timeout_ms / 1000.0))
        finally:
            self._local.unwatch(self._descriptor)
        return self._poll.poll(0) + [(HOSTS, select.POLLIN)] * bool(self._events)


class StepBuffers:
    """What crosses between the driver's step buffer and those of hosts.

    Args:
        num_local: workers on this machine, the first ones.
        max_message_bytes: what a host may send in one message.

    Attributes:
        used: whether workers step, and have wake-ups.
        rows: of each worker that is on a host, by its index.
    """

    def __init__(self, num_local: int, max_message_bytes: int) -> None:
        self._num_local, self._max_message_bytes = num_local, max_message_bytes
        self.used = False
        self._step_buffer: BoardMap | None = None
        self.rows: dict[int, WorkerRows] = {}

    def lay_out(self, step_buffer: BoardMap) -> None:
        """Hear where the driver's step buffer is.

        Raises:
            ConfigurationError: a row is larger.
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

    def requests(self, worker: int, number: int) -> Ring:
        """What is requested of a worker now, and a number to ring."""
        return Ring(number, self.rows[worker].requests())

    def take(self, head: Any, worker: int, answers: Answers) -> None:
        """Write answers onto the driver's step buffer, as a worker on this machine would have.

        Args:
            head: the driver's memory, with the worker's status slot.
            worker: whose they are.
            answers: as they came.

        Raises:
            ProtocolError: they are not answers to what was requested of this worker; nothing was written.
        """
        if worker not in self.rows or self._step_buffer is None:
            raise ProtocolError(f"worker {worker} has no rows to answer")
        self.rows[worker].write_answers(answers.rows, answers.data, kind_numbers(worker, len(self._step_buffer.shares)))
        status_slot(head, worker)[:] = answers.status_slot

    def check(self, worker: int, side_data: SideData) -> None:
        """Check side data that came from a host.

        Raises:
            ProtocolError: they are not about rows of this worker, or name a kind of info that there cannot be.
        """
        if worker not in self.rows or self._step_buffer is None:
            raise ProtocolError(f"worker {worker} has no rows to say anything about")
        step_buffer = self._step_buffer
        first = sum(step_buffer.shares[:worker])
        mine, numbers = range(first, first + step_buffer.shares[worker]), kind_numbers(worker, len(step_buffer.shares))
        for number, kind in side_data.kinds:
            if number not in numbers or not is_kind(kind, step_buffer.spec.info_bytes):
                raise ProtocolError("a kind of info is announced that there cannot be")
        if not all(env_id in mine for env_id, _ in (*side_data.infos, *side_data.observations)):
            raise ProtocolError(f"side data are not about a sub-environment of worker {worker}")
