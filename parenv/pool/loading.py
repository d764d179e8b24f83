"""Having all workers load a version at once: by wake-ups, because a message to each and its answer take far longer."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from parenv.memory.load_board import LoadBoard
from parenv.placement.local import LocalPlacement
from parenv.pool.versions import Version
from parenv.process.wake_up import WakeUp


class Loading:
    """Asks workers on this machine.

    One wake-up wakes all, and stays rung until the next time, when it is the turn of the other: whoever has answered
    sleeps at that one.

    Args:
        buffer: the shared memory.
        num_workers: of the pool.
        placement: of all workers.
    """

    def __init__(self, buffer: Any, num_workers: int, placement: LocalPlacement) -> None:
        self._step_buffer, self._placement = LoadBoard(buffer, num_workers), placement
        self._answers, self._wake_ups = WakeUp(), (WakeUp(), WakeUp())
        os.set_blocking(self._answers.fileno(), False)
        self._intact = True

    @property
    def descriptors(self) -> tuple[int, ...]:
        """For every worker: of the wake-up that it rings, and of the two that wake it by turns."""
        return tuple(wake_up.fileno() for wake_up in (self._answers, *self._wake_ups))

    def asked(self, worker: int) -> int | None:
        """What changes with every answer of a worker, or ``None`` while none is to come."""
        return self._step_buffer.asked(worker)

    def can_load(self, version: Version) -> bool:
        """Whether the version is all in shared memory, and nobody may still be on the way to the wrong wake-up."""
        return self._intact and not version.snapshot

    def load(self, version: Version, listen: Callable[[], object]) -> None:
        """Have all load a version.

        Args:
            version: which one.
            listen: waits until something happens.
        """
        self._intact = False
        number = self._step_buffer.ask(version.number, version.place)
        if number > 1:
            self._wake_ups[(number - 1) % 2].take()
        self._placement.watch(self._answers.fileno())
        try:
            self._wake_ups[number % 2].notify(1)
            while not self._step_buffer.all_have():
                listen()
        except BaseException:
            # Later versions come by messages, which a worker may take before it looks at the step buffer again.
            self._step_buffer.withdraw()
            raise
        finally:
            self._placement.unwatch(self._answers.fileno())
            with suppress(BlockingIOError):
                self._answers.take()
        self._intact = True

    def close(self) -> None:
        """Give the descriptors back. Idempotent."""
        for wake_up in (self._answers, *self._wake_ups):
            wake_up.close()
