"""Requests of the driver to load a version, made in shared memory with a wake-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parenv.memory.load_requests import WITHDRAWN, LoadRequests


class Loads:
    """The requests to one worker.

    Args:
        buffer: Shared memory.
        num_workers: Number of workers of the pool.
        worker: Index of the worker.
        load: Function ``(version, place, snapshot)`` that loads a version.
    """

    def __init__(self, buffer: Any, num_workers: int, worker: int, load: Callable[[int, int, bytes], object]) -> None:
        self._requests, self._worker, self._load = LoadRequests(buffer, num_workers), worker, load

    @property
    def is_asked(self) -> bool:
        """True if a version is requested."""
        return self._requests.asked(self._worker) is not None

    @property
    def turn(self) -> int:
        """Index of the wake-up that the driver notifies next."""
        return (self._requests.answered(self._worker) + 1) % 2

    def load(self) -> bool:
        """Load the requested version, if any; return whether the driver must be notified that all workers have it."""
        number = self._requests.asked(self._worker)
        if number is None:
            return False
        version, place = self._requests.wanted()
        if version != WITHDRAWN:
            self._load(version, place, b"")
        return self._requests.answer(self._worker, number)
