"""Wake-ups: how one process wakes another.

A wake-up carries no data. A process that is woken looks in shared memory for its work, and sleeps again if it finds
none. So a needless wake-up is harmless. A process that notifies another one writes the reason first. Each
wake-up is kept until the other process sleeps, so none is lost.

The main process sleeps on a descriptor, because it waits for other descriptors too: an eventfd on Linux, a pipe
elsewhere. The workers of a vector env sleep on one futex for 32 of them, so that a step of all costs the main process
one system call for each 32. Each has its own bit, so a request to one wakes no other. On a machine without futexes each
worker has a descriptor of its own.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from parenv.memory.order import fence, full_fence
from parenv.memory.rendezvous import Rendezvous
from parenv.memory.step_signals import GROUP, StepSignals, changes_offset, told
from parenv.platform import system
from parenv.platform.base import Handle
from parenv.platform.futex import EVERYONE, Futex
from parenv.process.spinning import Spinner

_CHANGES_MASK = (1 << 32) - 1


class WakeUp:
    """A wake-up over descriptors: one at which a process waits, and one with which others notify it, often the same.

    Args:
        descriptor: Descriptor of a wake-up that another process has made. This process uses it only for its kind, to
            wait or to notify. Default: make a wake-up.

    Attributes:
        notifying: Handle for processes that notify.
        notify: Function that wakes the process that waits, or ends its next wait at once.
        take: Function that waits until it is notified. It returns at once if it was notified since its last return.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._waiting, notifying = system.make_wake_up() if descriptor is None else (descriptor, descriptor)
        self.notifying = Handle(notifying)
        self.notify: Callable[[], object] = system.notifier(self.notifying)
        self.take: Callable[[], object] = system.taker(self._waiting)
        self._close = weakref.finalize(self, _close_all, {self._waiting, self.notifying})
        # An env that is still open at exit closes itself, and needs this descriptor for that.
        self._close.atexit = False

    def fileno(self) -> int:
        """Return the descriptor at which a process waits, which is readable while a notification was not taken."""
        return self._waiting

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        self._close()


class WorkerWakeUp:
    """The wake-up of one process of a worker of a vector env, as the main process sees it.

    Args:
        buffer: Shared memory of the vector env.
        worker: Index of the worker.
        futex: Futex on which the worker sleeps, or ``None`` if it has a descriptor.

    Attributes:
        has_futex: Whether the worker sleeps on a futex.
        inherited: Handles that the process of the worker needs.
        notify: Function that wakes the worker. The worker then looks for messages and requests.
    """

    notify: Callable[[], object]
    _own: WakeUp | None

    def __init__(self, buffer: Any, worker: int, futex: Futex | None) -> None:
        self._own, self.has_futex = None, futex is not None
        self.inherited: tuple[Handle, ...] = ()
        if futex is None:
            self._own = WakeUp()
            self.inherited, self.notify = (Handle(self._own.fileno()),), self._own.notify
        else:
            self.notify = partial(_change, futex, _bit_of(worker))
        # The new process counts the messages to it from 0.
        self._told = told(buffer, worker)
        self._told[0] = 0

    def notify_of_message(self) -> None:
        """Count a message that is sent next, and notify the worker, which then waits for the message."""
        self._told[0] += 1
        self.notify()

    def close(self) -> None:
        """Close the descriptor, if there is one. Idempotent."""
        if self._own is not None:
            self._own.close()


class WakeUps:
    """The wake-ups of all workers of a vector env on this machine.

    Args:
        buffer: Shared memory of the vector env.
        futexes: Whether workers sleep on futexes. If not, each has a descriptor of its own.
    """

    def __init__(self, buffer: Any, futexes: bool) -> None:
        self._buffer, self._has_futexes = buffer, futexes
        self._futexes: dict[int, Futex] = {}

    def of(self, worker: int) -> WorkerWakeUp:
        """Make the wake-up of the next process of a worker."""
        return WorkerWakeUp(self._buffer, worker, self._futex_of(worker) if self._has_futexes else None)

    def notify_all(self) -> None:
        """Notify all workers that sleep on futexes."""
        for futex in self._futexes.values():
            _change(futex, EVERYONE)

    def _futex_of(self, worker: int) -> Futex:
        """Return the futex on which a worker sleeps, with others of its group."""
        group = worker // GROUP
        if group not in self._futexes:
            self._futexes[group] = Futex(self._buffer, changes_offset(worker))
        return self._futexes[group]


class FutexWaiter:
    """The wake-up of a worker, as the worker sees it.

    Args:
        buffer: Shared memory of the vector env.
        worker: Index of the worker.

    Attributes:
        changes: Number that changes with each notification, one uint32.
        spinner: Spinner on ``changes``. Default: ``None``, sleep at once.
    """

    def __init__(self, buffer: Any, worker: int) -> None:
        self._futex, self._bit = Futex(buffer, changes_offset(worker)), _bit_of(worker)
        self.changes = self._futex.number
        self.spinner: Spinner | None = None
        # No value of the number, so the first wait ends at once: messages may have come before this process.
        self._seen = -1

    def take(self) -> None:
        """Wait until this worker, or another one of its group, is notified. See :class:`WakeUp`."""
        changes, spinner, seen = self.changes, self.spinner, self._seen
        while changes[0] == seen:
            if spinner is None:
                self._futex.wait(seen, self._bit)
            elif not spinner.heard(seen):
                self._futex.wait(seen, self._bit)
                spinner.woke()
        # A change after this read ends the next wait at once, so the caller misses nothing that it looks for now.
        self._seen = changes[0]
        fence()


class Answers:
    """The wake-up of the main process, as a worker of a vector env sees it.

    Args:
        buffer: Shared memory of the vector env.
        wake_up: Wake-up at which the main process sleeps.
    """

    def __init__(self, buffer: Any, wake_up: WakeUp) -> None:
        signals = StepSignals(buffer)
        self._notified, self._sleeping, self._wanted = signals.notified, signals.sleeping, signals.wanted
        self._wake_up = wake_up

    def notify(self) -> None:
        """Notify the main process."""
        self._notified[0] = 1
        # The main process notes that it may sleep, and then looks whether it was notified. This process does it the
        # other way round. With a full fence between, one of both sees what the other has written.
        full_fence()
        if self._sleeping[0]:
            self._wake_up.notify()

    def notify_if_enough(self, rows: Rendezvous) -> None:
        """Notify the main process if as many rows are finished as it waits for."""
        if rows.is_enough(self._wanted, self._notified):
            self.notify()


class Poller(Protocol):
    """Waits for workers, as ``select.poll`` waits for descriptors."""

    def poll(self, timeout_ms: float, /) -> list[tuple[int, int]]:
        """Wait up to the limit; return the descriptor if readable, and another number if workers may have ended."""


def sleep(signals: StepSignals, poller: Poller, timeout_s: float) -> list[tuple[int, int]]:
    """Sleep in the main process, unless a worker has notified it since :meth:`StepSignals.expect`.

    Args:
        signals: Shared numbers.
        poller: Poller of the descriptor that workers notify, and of other descriptors.
        timeout_s: Time limit in seconds.

    Returns:
        Result of the poller.
    """
    signals.sleeping[0] = 1
    # See Answers.notify, which does the same in the other order.
    full_fence()
    try:
        return poller.poll(0.0 if signals.notified[0] else timeout_s * 1000.0)
    finally:
        signals.sleeping[0] = 0


def _close_all(descriptors: set[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _bit_of(worker: int) -> int:
    return 1 << worker % GROUP


def _change(futex: Futex, bits: int) -> None:
    """Change the number that workers sleep on, and wake those with these bits."""
    # A worker that is about to sleep sees the change without the kernel. It must then see the reason too.
    fence()
    futex.number[0] = (futex.number[0] + 1) & _CHANGES_MASK
    futex.wake(bits)
