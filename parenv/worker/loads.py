"""A worker's answers to a driver that asks all to load a version by a doorbell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parenv.memory.load_board import WITHDRAWN, LoadBoard


class Loads:
    """What is asked of one worker.

    Args:
        buffer: the shared memory.
        num_workers: of the pool.
        worker: which one.
        load: loads a version, given its place and what is pickled of it.
    """

    def __init__(self, buffer: Any, num_workers: int, worker: int, load: Callable[[int, int, bytes], object]) -> None:
        self._board, self._worker, self._load = LoadBoard(buffer, num_workers), worker, load

    @property
    def is_asked(self) -> bool:
        """Whether there is a version to load."""
        return self._board.asked(self._worker) is not None

    @property
    def turn(self) -> int:
        """Which of the two bells is rung next."""
        return (self._board.answered(self._worker) + 1) % 2

    def load(self) -> bool:
        """Load what is asked for, if anything is; whether something was, and the driver is to be told that all have."""
        number = self._board.asked(self._worker)
        if number is None:
            return False
        version, place = self._board.wanted()
        if version != WITHDRAWN:
            self._load(version, place, b"")
        return self._board.answer(self._worker, number)
