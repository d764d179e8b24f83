"""Numbers at the head of a pool's shared memory with which the main process and its workers notify each other."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from parenv.memory.layout import ALIGNMENT
from parenv.memory.order import fence
from parenv.memory.rendezvous import Rendezvous

WITHDRAWN = -1
"""Version number of a withdrawn request."""
_LOAD, _VERSION, _PLACE, _ROUND, _COUNT = range(8, 48, 8)
_OTHERS = 48
_LOADED, _COMMITTED = 40, 48


class LoadRequests:
    """Requests that all workers load a version, and their answers. A request has a number that counts up.

    Args:
        buffer: Shared memory.
        num_workers: Number of workers of the pool.
    """

    def __init__(self, buffer: Any, num_workers: int) -> None:
        self._number, self._version, self._place = (_item(buffer, at) for at in (_LOAD, _VERSION, _PLACE))
        self._loaded, self._all = _of_workers(buffer, num_workers, _LOADED), [num_workers]
        self._rendezvous = Rendezvous(self._number, self._loaded)

    def ask(self, version: int, place: int) -> int:
        """Request a version from all workers; return the number of the request."""
        self._version[0], self._place[0] = version, place
        # A worker reads the number first. If it sees the new number, it must not read the old version.
        fence()
        self._number[0] += 1
        return int(self._number[0])

    def withdraw(self) -> None:
        """Withdraw the request. A worker that has not begun to load loads nothing, and answers all the same."""
        self._version[0] = WITHDRAWN

    def asked(self, worker: int) -> int | None:
        """Return the number of the request that a worker has not answered yet, or ``None``."""
        number = self._number[0]
        return None if self._loaded[worker] == number else number

    def wanted(self) -> tuple[int, int]:
        """Return the requested version, or :data:`WITHDRAWN`, and its place."""
        # The caller has read the number of the request, and must read the version after it.
        fence()
        return self._version[0], self._place[0]

    def answer(self, worker: int, number: int) -> bool:
        """Answer for a worker, whose load is complete; return whether it must notify the main process."""
        self._rendezvous.finish(worker, number)
        return self._rendezvous.is_enough(self._all)

    def answered(self, worker: int) -> int:
        """Return the number that a worker has answered last."""
        return int(self._loaded[worker])

    def all_have(self) -> bool:
        """Return whether all workers have answered."""
        return self._rendezvous.has(self._all[0])


class RoundSignals:
    """Rounds of a synchronous pool. In other pools the numbers are zero.

    The commits of a round are messages, but each of them would wake the main process. So the main process sleeps on a
    wake-up instead, and the last worker that commits its part of the round notifies it. All other messages come with a
    wake-up.

    Args:
        buffer: Shared memory.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer, self._round, self._count = buffer, _item(buffer, _ROUND), _item(buffer, _COUNT)
        self._others = memoryview(buffer)[_OTHERS : _OTHERS + 1]

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
        self._commits.finish(worker, sequence + 1)
        return self._commits.is_enough(self._count)

    def are_due(self) -> bool:
        """Return whether messages are on the way for which the main process must wait, after a wake-up."""
        fence()
        # A worker may set the flag right after it is read. It is cleared only if it was set, so this is not lost.
        if self._others[0]:
            self._others[0] = 0
            return True
        return self._commits.has(self._count[0])

    @cached_property
    def _commits(self) -> Rendezvous:
        # The number of workers is known only when the first round begins.
        return Rendezvous(self._round, _of_workers(self._buffer, self._count[0], _COMMITTED))


def _item(buffer: Any, offset: int) -> Any:
    return memoryview(buffer)[offset : offset + 8].cast("q")


def _of_workers(buffer: Any, num_workers: int, offset: int) -> Any:
    """Return one number in the slot of each worker, int64 ``[num_workers]``."""
    return np.ndarray(num_workers, "<i8", buffer, ALIGNMENT + offset, (ALIGNMENT,))
