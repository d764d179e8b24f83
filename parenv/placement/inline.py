"""One worker in the caller's own process: the same code path, for breakpoints and for ``num_workers=0``."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from parenv.placement.base import Event, Launch, Placement, Received, drained
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Message
from parenv.transport.interrupts import Heard

Send = Callable[[Message], None]


class InlineWorker(Protocol):
    """What an inline placement runs."""

    answering: int
    """Sequence of the call at hand, or -1."""
    failed: bool
    """Whether it has given up."""

    def receive(self, message: Message) -> None:
        """Take one message."""

    def work(self) -> bool:
        """Do the next thing; whether there was one."""

    def give_up(self) -> None:
        """Do nothing more but wait to be closed."""

    def close(self) -> None:
        """Clean up."""


class InlinePlacement(Placement):
    """Runs the worker while the driver waits.

    Exceptions of the environment or the policy come out of :meth:`wait` as they are, with their own traceback.

    Args:
        make_worker: makes the worker from its sender, the launch and the function with which it speaks.
    """

    def __init__(self, make_worker: Callable[[Sender, Launch, Send], InlineWorker]) -> None:
        self._make_worker = make_worker
        self._worker: InlineWorker | None = None
        self._events: deque[Event] = deque()

    def start(self, launch: Launch, workers: Sequence[Sender]) -> None:
        """Make the worker."""
        (sender,) = workers
        self._worker = self._make_worker(sender, launch, lambda message: self._heard(sender, message))

    def send(self, to: Sender, message: Message) -> None:
        """Hand a message to the worker, through frames as everywhere."""
        if self._worker is not None:
            self._worker.receive(from_frames(to_frames(to, message))[1])

    def wait(self, timeout_s: float) -> list[Event]:
        """Let the worker work until it says something or has nothing to do. Not bounded by the limit."""
        worker = self._worker
        with Heard():
            try:
                while not self._events and worker is not None and worker.work():
                    pass
            except BaseException:
                if worker is not None and worker.answering < 0:
                    worker.give_up()
                raise
        return drained(self._events)

    def signal(self, worker: Sender, signum: int, alone: bool) -> None:
        """Not for this process."""

    def stack(self, worker: Sender) -> str:
        """None, since nobody waits for this process in vain."""
        return ""

    def pid(self, worker: Sender) -> int:
        """This process."""
        return os.getpid()

    def alive(self) -> int:
        """One, until it fails or is closed."""
        return int(self._worker is not None and not self._worker.failed)

    def close(self, timeout_s: float) -> None:
        """Clean the worker up. Idempotent."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _heard(self, sender: Sender, message: Message) -> None:
        self._events.append(Received(*from_frames(to_frames(sender, message))))
