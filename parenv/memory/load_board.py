"""Which version all workers of a pool are to load, and who has: in the head of the shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenv.memory.layout import ALIGNMENT
from parenv.memory.order import fence, full_fence

WITHDRAWN = -1
"""In place of a version."""
_ASKED_OFFSET = 8
_LOADED_OFFSET = 40


class LoadBoard:
    """The driver asks by a number that counts, and each worker answers with it.

    Args:
        buffer: the shared memory.
        num_workers: of the pool.
    """

    def __init__(self, buffer: Any, num_workers: int) -> None:
        self._number, self._version, self._place = (
            memoryview(buffer)[at : at + 8].cast("q") for at in range(_ASKED_OFFSET, _ASKED_OFFSET + 24, 8)
        )
        self._loaded = np.ndarray(num_workers, "<i8", buffer, ALIGNMENT + _LOADED_OFFSET, (ALIGNMENT,))

    def ask(self, version: int, place: int) -> int:
        """Ask all; the number of this."""
        self._version[0], self._place[0] = version, place
        fence()
        self._number[0] += 1
        return self._number[0]

    def withdraw(self) -> None:
        """Whoever has not begun to load has nothing to load any more, and answers all the same."""
        self._version[0] = WITHDRAWN

    def asked(self, worker: int) -> int | None:
        """What a worker has not answered yet, if it has been asked."""
        number = self._number[0]
        return None if self._loaded[worker] == number else number

    def wanted(self) -> tuple[int, int]:
        """The version that was asked for, or :data:`WITHDRAWN`, and its place."""
        fence()
        return self._version[0], self._place[0]

    def answer(self, worker: int, number: int) -> bool:
        """Answer for a worker; whether all have by now, which of those that finish at once at least one is told."""
        fence()
        self._loaded[worker] = number
        full_fence()
        return self.all_have()

    def answered(self, worker: int) -> int:
        """The number that a worker has answered last."""
        return int(self._loaded[worker])

    def all_have(self) -> bool:
        """Whether all have answered."""
        return bool((self._loaded == self._number[0]).all())
