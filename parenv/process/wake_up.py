"""Wake-ups: eventfds, the cheapest way for one process to wake another.

Numbers that are written to an eventfd add up until a process reads the sum, so no wake-up is lost if no process waits.
The sum that a worker reads holds four counts: orders, :data:`ALL`, :data:`MESSAGE` and :data:`ECHO`. The main process
only learns that it has something to look at.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

# The counts share one number, so one system call reads all of them at the same moment. A count that overflowed would
# change the next one, but each has room for far more than can be in progress for one worker.
ALL = 1 << 32
"""Step every sub-environment."""
MESSAGE = 1 << 48
"""Read a message from the socket."""
ECHO = 1 << 60
"""Notify the main process, and do nothing else."""


class WakeUpCounts(NamedTuple):
    """The counts in a sum."""

    echoes: int
    messages: int
    all_rows: int
    orders: int


def counts_of(value: int) -> WakeUpCounts:
    """Split a sum into its counts.

    >>> counts_of(2 * MESSAGE + ALL + 7)
    WakeUpCounts(echoes=0, messages=2, all_rows=1, orders=7)
    """
    return WakeUpCounts(value >> 60, (value >> 48) & 0xFFF, (value >> 32) & 0xFFFF, value & 0xFFFFFFFF)


class WakeUp:
    """An eventfd.

    Args:
        descriptor: Descriptor of an eventfd that another process has made. Default: make one.

    Attributes:
        notify: Function that adds a number to the sum.
        take: Function that returns the sum since the last call, and waits while it is zero.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = os.eventfd(0) if descriptor is None else descriptor
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
