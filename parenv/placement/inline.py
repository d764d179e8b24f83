"""A worker in the caller's process, for ``num_workers=0``: the same code, so breakpoints work."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from parenv.placement.base import Arrived, Launch, Placement, Received, SteppingPlacement, drained
from parenv.process.wake_up import Poller, WakeUps, WorkerWakeUp
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Message
from parenv.transport.interrupts import Heard

Send = Callable[[Message], None]


class InlineWorker(Protocol):
    """A worker that an inline placement runs."""

    answering: int
    """Sequence number of the call in progress, or -1."""
    failed: bool
    """Whether the worker has failed, and only waits to be closed."""

    def receive(self, message: Message) -> None:
        """Accept a message."""

    def work(self) -> bool:
        """Do the next piece of work; return whether there was any."""

    def give_up(self) -> None:
        """Stop working, and wait to be closed."""

    def close(self) -> None:
        """Clean up."""


class NoWorkers(SteppingPlacement):
    """The placement of a vector env without workers, whose sub-environments this process steps."""

    def start(self, launch: Launch, workers: Sequence[Sender]) -> None:
        """Start nothing."""

    def send(self, to: Sender, message: Message) -> None:
        """Send nothing."""

    def wait(self, timeout_s: float) -> list[Arrived]:
        """Return no events, at once."""
        return []

    def signal(self, worker: Sender, signum: int, alone: bool) -> None:
        """Signal nothing."""

    def stack(self, worker: Sender) -> str:
        """Return an empty stack."""
        return ""

    def pid(self, worker: Sender) -> int:
        """Return -1."""
        return -1

    def alive(self) -> int:
        """Return 0."""
        return 0

    def wake_up(self, worker: int, wake_ups: WakeUps) -> WorkerWakeUp:
        """Make a wake-up, without a process that waits for it."""
        return wake_ups.of(worker)

    def poller(self, descriptor: int) -> Poller:
        """Refuse to wait, because nothing will come."""
        raise RuntimeError("no worker can answer")


class InlinePlacement(Placement):
    """Runs the worker while the caller waits.

    :meth:`wait` raises exceptions of the environment or the policy unchanged, with their own traceback.

    Args:
        make_worker: ``(sender, launch, send) -> worker``.
    """

    def __init__(self, make_worker: Callable[[Sender, Launch, Send], InlineWorker]) -> None:
        self._make_worker = make_worker
        self._worker: InlineWorker | None = None
        self._events: deque[Arrived] = deque()

    def start(self, launch: Launch, workers: Sequence[Sender]) -> None:
        """Make the worker."""
        (sender,) = workers
        self._worker = self._make_worker(sender, launch, lambda message: self._heard(sender, message))

    def send(self, to: Sender, message: Message) -> None:
        """Pass a message to the worker, through frames as for any worker."""
        if self._worker is not None:
            self._worker.receive(from_frames(to_frames(to, message))[1])

    def wait(self, timeout_s: float) -> list[Arrived]:
        """Run the worker until it sends a message or has nothing to do. The limit is ignored."""
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
        """Do nothing, because the worker is this process."""

    def stack(self, worker: Sender) -> str:
        """Return an empty stack, because this process is not stuck while it calls this."""
        return ""

    def pid(self, worker: Sender) -> int:
        """Return the id of this process."""
        return os.getpid()

    def alive(self) -> int:
        """Return 1 until the worker fails or is closed, then 0."""
        return int(self._worker is not None and not self._worker.failed)

    def close(self, timeout_s: float) -> list[Arrived]:
        """Close the worker. Idempotent."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        return []

    def _heard(self, sender: Sender, message: Message) -> None:
        self._events.append(Received(*from_frames(to_frames(sender, message))))
