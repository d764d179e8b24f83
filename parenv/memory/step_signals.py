"""Numbers at the head of a vector env's shared memory with which the main process and its workers notify each other."""

from __future__ import annotations

from typing import Any

from parenv.memory.layout import ALIGNMENT
from parenv.memory.order import full_fence

GROUP = 32
"""Number of workers that sleep on one number, as many as a futex has bits."""
_WANTED, _NOTIFIED, _SLEEPING = 40, 48, 49
_TOLD, _CHANGES = 48, 56


def changes_offset(worker: int) -> int:
    """Return the offset in bytes of the uint32 that changes when a worker or others of its group are notified."""
    return ALIGNMENT * (1 + worker - worker % GROUP) + _CHANGES


def told(buffer: Any, worker: int) -> Any:
    """Return the number of messages to the present process of a worker, one int64 that the main process writes."""
    begin = ALIGNMENT * (1 + worker) + _TOLD
    return memoryview(buffer)[begin : begin + 8].cast("q")


class StepSignals:
    """The numbers for the wait of the main process, each of them one item of a memoryview.

    Args:
        buffer: Shared memory.

    Attributes:
        wanted: int64: number of finished rows for which the main process waits.
        notified: uint8: whether a worker has notified the main process since it last looked at the rows.
        sleeping: uint8: whether the main process may sleep, so that a worker that notifies it wakes it.
    """

    def __init__(self, buffer: Any) -> None:
        head = memoryview(buffer)
        self.wanted = head[_WANTED : _WANTED + 8].cast("q")
        self.notified, self.sleeping = head[_NOTIFIED : _NOTIFIED + 1], head[_SLEEPING : _SLEEPING + 1]

    def expect(self, rows: int) -> None:
        """Have workers notify the main process once so many rows are finished. The caller then looks at the rows."""
        self.wanted[0] = rows
        self.notified[0] = 0
        # This is the fence of the main process in the rendezvous of the rows.
        full_fence()
