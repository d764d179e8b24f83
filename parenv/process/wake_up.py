"""Wake-ups: the cheapest way for one process to wake another.

What is rung adds up until it is taken, so nothing is lost when nobody listens. To a worker, the sum is four counts in
one number: orders, :data:`ALL`, :data:`MESSAGE` and :data:`ECHO`. To the driver it only says that there is something to
look at.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

# One number, so that taking it is one system call and nothing can be rung between the counts. A count that overflowed
# would be read as the next one, but what may be under way to one worker is far less than each has room for.
ALL = 1 << 32
"""Step every sub-environment."""
MESSAGE = 1 << 48
"""A message is on its way over the socket."""
ECHO = 1 << 60
"""Answer, and do nothing else."""


class WakeUpCounts(NamedTuple):
    """What a sum says."""

    echoes: int
    messages: int
    all_rows: int
    orders: int


def counts_of(value: int) -> WakeUpCounts:
    """Take a sum apart.

    >>> rung(2 * MESSAGE + ALL + 7)
    Rung(echoes=0, messages=2, all_rows=1, orders=7)
    """
    return WakeUpCounts(value >> 60, (value >> 48) & 0xFFF, (value >> 32) & 0xFFFF, value & 0xFFFFFFFF)


class WakeUp:
    """An eventfd.

    Args:
        descriptor: that of a wake-up that another process has made.

    Attributes:
        ring: adds a number to the sum.
        take: the sum since the last time; waits while there is none.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = os.eventfd(0) if descriptor is None else descriptor
        self.notify: Callable[[int], object] = partial(os.eventfd_write, self._descriptor)
        self.take: Callable[[], int] = partial(os.eventfd_read, self._descriptor)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        # At exit an env that is still open closes itself, and rings for that.
        self._close.atexit = False

    def fileno(self) -> int:
        """Readable while something has been rung and not taken."""
        return self._descriptor

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        self._close()
