"""Numbers at the head of a pool's shared memory with which the last worker of a round notifies the main process."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenv.memory.layout import ALIGNMENT
from parenv.memory.order import fence, full_fence

_ROUND, _COUNT, _OTHERS, _COMMITTED = 32, 40, 48, 48


class RoundSignals:
    """The numbers of a synchronous pool. In other pools they are zero.

    The commits of a round are messages, but each of them would wake the main process. So the main process sleeps on a
    wake-up instead, and the last worker that commits its part of the round notifies it. All other messages come with a
    wake-up. Between the write of the own number and the look at the others is a full fence, so of the last workers to
    commit at least one notifies.

    Args:
        buffer: Shared memory.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer, head = buffer, memoryview(buffer)
        self._round, self._count = (head[at : at + 8].cast("q") for at in (_ROUND, _COUNT))
        self._others = head[_OTHERS : _OTHERS + 1]

    def open(self, num_workers: int) -> None:
        """Have this number of workers notify the main process from now on."""
        self._count[0] = num_workers

    def begin(self, sequence: int) -> None:
        """Begin a round, before its credits with this number are sent."""
        # A worker may commit before the others get their credits, and compares its number with this one.
        self._round[0] = sequence + 1
        fence()

    def must_notify(self, worker: int, sequence: int | None) -> bool:
        """Note a message that a worker has sent, and return whether the worker must notify the main process.

        Args:
            worker: Index of the worker.
            sequence: Number of the credit that the message commits. ``None`` for other messages.
        """
        if not self._count[0]:
            return False
        if sequence is None:
            # Set before the wake-up, after which the main process looks at it.
            self._others[0] = 1
            fence()
            return True
        # Once all numbers are written, the main process waits for the commits, so each is sent before its number.
        fence()
        self._committed[worker] = sequence + 1
        # Without a full fence, each of the last two workers could miss the number of the other, and none would notify.
        full_fence()
        return self._is_complete()

    def are_due(self) -> bool:
        """Return whether messages are on the way for which the main process must wait, after a wake-up."""
        fence()
        # A worker may set the flag right after it is read. It is cleared only if it was set, so this is not lost.
        if self._others[0]:
            self._others[0] = 0
            return True
        return self._is_complete()

    @property
    def _committed(self) -> Any:
        return np.ndarray(self._count[0], "<i8", self._buffer, ALIGNMENT + _COMMITTED, (ALIGNMENT,))

    def _is_complete(self) -> bool:
        return bool((self._committed == self._round[0]).all())
