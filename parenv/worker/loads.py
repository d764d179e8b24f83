"""A worker's answers to a driver that asks all to load a version by a wake-up."""

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
        self._step_buffer, self._worker, self._load = LoadBoard(buffer, num_workers), worker, load

    @property
    def is_asked(self) -> bool:
        """Whether there is a version to load."""
        return self._step_buffer.asked(self._worker) is not None

    @property
    def turn(self) -> int:
        """Which of the two wake-ups is rung next."""
        return (self._step_buffer.answered(self._worker) + 1) % 2

    def load(self) -> bool:
        """Load what is asked for, if anything is; whether something was, and the driver is to be told that all have."""
        number = self._step_buffer.asked(self._worker)
        if number is None:
            return False
        version, place = self._step_buffer.wanted()
        if version != WITHDRAWN:
            self._load(version, place, b"")
        return self._step_buffer.answer(self._worker, number)
