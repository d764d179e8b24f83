"""The synchronization of the workers of this machine with a version."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.memory.pool_signals import LoadRequests
from parenv.placement.local import LocalPlacement
from parenv.platform.base import Handle
from parenv.pool.versions import Version
from parenv.process.wake_up import WakeUp


class Synchronization:
    """Has all workers load a version at once. Messages and their answers would take far longer.

    One wake-up wakes all workers. It stays notified until the next synchronization, which uses the other wake-up. A
    worker that has answered sleeps at that other one.

    Args:
        buffer: Shared memory of the pool.
        num_workers: Number of workers.
        placement: Placement of all workers.
    """

    def __init__(self, buffer: Any, num_workers: int, placement: LocalPlacement) -> None:
        self._requests = LoadRequests(buffer, num_workers)
        self._answers, self._wake_ups = WakeUp(), (WakeUp(), WakeUp())
        os.set_blocking(self._answers.fileno(), False)
        placement.notified_by(self._answers)
        self._intact = True

    @property
    def handles(self) -> tuple[Handle, ...]:
        """Handles for every worker: the wake-up that it notifies, and the two that wake it in turn."""
        return (self._answers.notifying, *(Handle(wake_up.fileno()) for wake_up in self._wake_ups))

    def asked(self, worker: int) -> int | None:
        """Return a value that changes with every answer of a worker, or ``None`` if no answer is due."""
        return self._requests.asked(worker)

    def can_load(self, version: Version) -> bool:
        """Return whether all of the version is in shared memory, and no worker may wait at the wrong wake-up."""
        return self._intact and not version.snapshot

    def load(self, version: Version, listen: Callable[[], object]) -> None:
        """Have all workers load a version."""
        self._intact = False
        number = self._requests.ask(version.number, version.place)
        if number > 1:
            self._wake_ups[(number - 1) % 2].take()
        try:
            self._wake_ups[number % 2].notify()
            while not self._requests.all_have():
                listen()
        except BaseException:
            # Later versions come by messages, which a worker may take before it looks at the requests again.
            self._requests.withdraw()
            raise
        self._intact = True

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        for wake_up in (self._answers, *self._wake_ups):
            wake_up.close()
