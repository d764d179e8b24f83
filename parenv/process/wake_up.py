"""Wake-ups: how one process wakes another.

The numbers with which a worker is notified add up until it takes the sum, so no wake-up is lost if it does not wait.
The sum holds three counts: orders, :data:`ALL` and :data:`MESSAGE`.

The main process sleeps on an eventfd, because it waits for other descriptors too. The workers of a vector env sleep on
one futex for 32 of them, so that a step of all costs the main process one system call for each 32. Each has its own
bit, so a request to one wakes no other. On a machine without futexes each worker has an eventfd.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from parenv.memory.order import fence, full_fence
from parenv.memory.step_buffer import StepBuffer
from parenv.memory.step_signals import GROUP, StepSignals, changes_offset
from parenv.process.futex import EVERYONE, Futex
from parenv.process.spinning import Spinner

# The counts share one number, so one system call reads all of them at the same moment. A count that overflowed would
# change the next one, but each has room for far more than can be in progress for one worker.
ALL = 1 << 32
"""Step every sub-environment."""
MESSAGE = 1 << 48
"""Read a message from the socket."""
_SUM_MASK, _CHANGES_MASK = (1 << 64) - 1, (1 << 32) - 1


class WakeUpCounts(NamedTuple):
    """The counts in a sum."""

    messages: int
    all_rows: int
    orders: int


def counts_of(value: int) -> WakeUpCounts:
    """Split a sum into its counts.

    >>> counts_of(2 * MESSAGE + ALL + 7)
    WakeUpCounts(messages=2, all_rows=1, orders=7)
    """
    return WakeUpCounts((value >> 48) & 0xFFF, (value >> 32) & 0xFFFF, value & 0xFFFFFFFF)


class WakeUp:
    """An eventfd.

    Args:
        descriptor: Descriptor of an eventfd that another process has made. Default: make one.

    Attributes:
        inherited: Descriptors that the process needs that takes the sum.
        sum_before: Sum of the numbers of earlier processes, which the process that takes the sum must not count.
        notify: Function that adds a number to the sum.
        take: Function that returns the sum since the last call, and waits while it is zero.
    """

    sum_before = 0

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = os.eventfd(0) if descriptor is None else descriptor
        self.inherited: tuple[int, ...] = (self._descriptor,)
        self.notify: Callable[[int], object] = partial(os.eventfd_write, self._descriptor)
        self.take: Callable[[], int] = partial(os.eventfd_read, self._descriptor)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        # An env that is still open at exit closes itself, and needs this descriptor for that.
        self._close.atexit = False

    def fileno(self) -> int:
        """Return the descriptor, which is readable while the sum is not zero."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        self._close()


class FutexWakeUp:
    """The wake-up of one process of a worker, as the process that notifies it sees it.

    Args:
        wake_ups: Wake-ups of all workers.
        worker: Index of the worker.

    Attributes:
        inherited: No descriptors, see :class:`WakeUp`.
        sum_before: Sum of the numbers of earlier processes of this worker.
    """

    inherited: tuple[int, ...] = ()

    def __init__(self, wake_ups: FutexWakeUps, worker: int) -> None:
        self._futex, self._bit = wake_ups.futex_of(worker), _bit_of(worker)
        self._sum = wake_ups.signals.request_sum(worker)
        self.sum_before = self._sum[0]

    def notify(self, value: int) -> None:
        """Add a number to the sum."""
        self._sum[0] = (self._sum[0] + value) & _SUM_MASK
        _change(self._futex, self._bit)

    def close(self) -> None:
        """Do nothing: there is no descriptor."""


class FutexWakeUps:
    """The wake-ups of all workers of a vector env on this machine.

    Args:
        buffer: Shared memory of the vector env.

    Attributes:
        signals: The shared numbers.
    """

    def __init__(self, buffer: Any) -> None:
        self.signals, self._buffer = StepSignals(buffer), buffer
        self._futexes: dict[int, Futex] = {}

    def notify_all(self) -> None:
        """Request a step of every sub-environment, from all workers at once."""
        rounds = self.signals.rounds
        rounds[0] = (rounds[0] + 1) & _CHANGES_MASK
        for futex in self._futexes.values():
            _change(futex, EVERYONE)

    def futex_of(self, worker: int) -> Futex:
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
        sum_before: See :class:`FutexWakeUp`.

    Attributes:
        changes: Number that changes with each request, one uint32.
        spinner: Spinner on ``changes``. Default: ``None``, sleep at once.
    """

    def __init__(self, buffer: Any, worker: int, sum_before: int) -> None:
        signals, self._futex = StepSignals(buffer), Futex(buffer, changes_offset(worker))
        self._sum, self._rounds, self._bit = signals.request_sum(worker), signals.rounds, _bit_of(worker)
        # While this worker was not there, the main process notified the others one by one. So all rounds that this
        # process must serve are still to come.
        self._sum_seen, self._rounds_seen = sum_before, self._rounds[0]
        self.changes = self._futex.number
        self.spinner: Spinner | None = None

    def take(self) -> int:
        """Return the sum since the last call, and wait while it is zero."""
        changes, spinner = self.changes, self.spinner
        while True:
            seen = changes[0]
            fence()
            if value := self._new():
                fence()
                return value
            if spinner is None:
                self._futex.wait(seen, self._bit)
            elif not spinner.heard(seen):
                self._futex.wait(seen, self._bit)
                spinner.woke()

    def _new(self) -> int:
        # The main process notifies about a message before the step that needs it. Read in the other order, or a step
        # could be seen without its message.
        rounds = self._rounds[0]
        fence()
        total = self._sum[0]
        value = (total - self._sum_seen) & _SUM_MASK
        value += ((rounds - self._rounds_seen) & _CHANGES_MASK) * ALL
        self._sum_seen, self._rounds_seen = total, rounds
        return value


class Answers:
    """The wake-up of the main process, as a worker sees it.

    Args:
        buffer: Shared memory of the vector env.
        wake_up: Eventfd on which the main process sleeps.
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
            self._wake_up.notify(1)

    def notify_if_enough(self, step_buffer: StepBuffer) -> None:
        """Notify the main process if as many rows are finished as it waits for."""
        full_fence()
        # If another worker has notified already, the main process will look at the rows after it has cleared this.
        if not self._notified[0] and step_buffer.has_finished(self._wanted[0]):
            self.notify()


class Poller(Protocol):
    """Waits for workers, as ``select.poll`` waits for descriptors."""

    def poll(self, timeout_ms: float, /) -> list[tuple[int, int]]:
        """Wait up to the limit; return the descriptor if readable, and another number if workers may have ended."""


def sleep(signals: StepSignals, poller: Poller, timeout_s: float) -> list[tuple[int, int]]:
    """Sleep in the main process, unless a worker has notified it since :meth:`StepSignals.expect`.

    Args:
        signals: Shared numbers.
        poller: Poller of the eventfd that workers notify, and of other descriptors.
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


def _bit_of(worker: int) -> int:
    return 1 << worker % GROUP


def _change(futex: Futex, bits: int) -> None:
    """Change the number that workers sleep on, and wake those with these bits."""
    fence()
    futex.number[0] = (futex.number[0] + 1) & _CHANGES_MASK
    futex.wake(bits)
