"""Requests in the head of the shared memory that all workers load a version, and their answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenv.memory.layout import ALIGNMENT
from parenv.memory.order import fence, full_fence

WITHDRAWN = -1
"""Version number of a withdrawn request."""
_ASKED_OFFSET = 8
_LOADED_OFFSET = 40


class LoadRequests:
    """A request has a number that counts up, and each worker answers with that number.

    Args:
        buffer: Shared memory.
        num_workers: Number of workers of the pool.
    """

    def __init__(self, buffer: Any, num_workers: int) -> None:
        self._number, self._version, self._place = (
            memoryview(buffer)[at : at + 8].cast("q") for at in range(_ASKED_OFFSET, _ASKED_OFFSET + 24, 8)
        )
        self._loaded = np.ndarray(num_workers, "<i8", buffer, ALIGNMENT + _LOADED_OFFSET, (ALIGNMENT,))

    def ask(self, version: int, place: int) -> int:
        """Request a version from all workers; return the number of the request."""
        self._version[0], self._place[0] = version, place
        # A worker reads the number first. If it sees the new number, it must not read the old version.
        fence()
        self._number[0] += 1
        return self._number[0]

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
        """Answer for a worker; return whether all have answered. Of the last ones at least one gets ``True``."""
        # The main process may overwrite the old version as soon as it sees this answer, so the load must be complete.
        fence()
        self._loaded[worker] = number
        # Without a full fence, each of the last two workers could miss the answer of the other, and none would notify.
        full_fence()
        return self.all_have()

    def answered(self, worker: int) -> int:
        """Return the number that a worker has answered last."""
        return int(self._loaded[worker])

    def all_have(self) -> bool:
        """Return whether all workers have answered."""
        return bool((self._loaded == self._number[0]).all())
