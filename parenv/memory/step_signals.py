"""Numbers at the head of a vector env's shared memory with which the main process and its workers notify each other."""

from __future__ import annotations

from typing import Any

from parenv.memory.layout import ALIGNMENT
from parenv.memory.order import full_fence
from parenv.memory.status_slot import ANY_INFOS, SPOKE

GROUP = 32
"""Number of workers that sleep on one number, as many as a futex has bits."""
_CHANGES = 56
_ROUNDS, _WANTED, _NOTIFIED, _SLEEPING = 36, 40, 48, 49
_SUM = 48


def changes_offset(worker: int) -> int:
    """Return the offset in bytes of the uint32 that changes with each request to a worker or to others of its group."""
    return ALIGNMENT * (1 + worker - worker % GROUP) + _CHANGES


def offsets(worker: int) -> dict[str, int]:
    """Return the offsets in bytes of the numbers that a worker without parenv uses, see ``parenv/interpreter``."""
    return {
        "slot": ALIGNMENT * (1 + worker),
        "any_infos": ANY_INFOS,
        "spoke": SPOKE,
        "wanted": _WANTED,
        "notified": _NOTIFIED,
        "sleeping": _SLEEPING,
    }


class StepSignals:
    """The numbers, each of them one item of a memoryview.

    The main process writes the rows of a request, and then its number. A worker that has finished its rows looks
    whether the rows of all workers are enough for the main process, and only then notifies it. Between the write of the
    own rows and the look at the others is a full fence, so of the last workers to finish at least one notifies.

    Args:
        buffer: Shared memory.

    Attributes:
        rounds: uint32: number of requests to step every sub-environment.
        wanted: int64: number of finished rows for which the main process waits.
        notified: uint8: whether a worker has notified the main process since it last looked at the rows.
        sleeping: uint8: whether the main process may sleep, so that a worker that notifies it writes the eventfd.
    """

    def __init__(self, buffer: Any) -> None:
        head = memoryview(buffer)
        self._buffer = head
        self.rounds = head[_ROUNDS : _ROUNDS + 4].cast("I")
        self.wanted = head[_WANTED : _WANTED + 8].cast("q")
        self.notified, self.sleeping = head[_NOTIFIED : _NOTIFIED + 1], head[_SLEEPING : _SLEEPING + 1]

    def request_sum(self, worker: int) -> memoryview:
        """Return the sum of all numbers that one worker was notified with, one uint64 that wraps around."""
        begin = ALIGNMENT * (1 + worker) + _SUM
        return self._buffer[begin : begin + 8].cast("Q")

    def expect(self, rows: int) -> None:
        """Have workers notify the main process once so many rows are finished. The caller then looks at the rows."""
        self.wanted[0] = rows
        self.notified[0] = 0
        # A worker that finishes before the fence is seen by the caller's look at the rows. One that finishes after it
        # sees the cleared flag, and notifies.
        full_fence()
