"""Doorbells: the cheapest way for one process to wake another.

What is rung adds up until it is taken, so nothing is lost when nobody listens. To a worker, the sum is four counts in
one number: orders, :data:`ALL`, :data:`MESSAGE` and :data:`ECHO`. To the driver it only says that there is something to
look at.
"""

from __future__ import annotations

import os
import struct
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
_NUMBER = struct.Struct("<Q")


class Rung(NamedTuple):
    """What a sum says."""

    echoes: int
    messages: int
    all_rows: int
    orders: int


def rung(value: int) -> Rung:
    """Take a sum apart.

    >>> rung(2 * MESSAGE + ALL + 7)
    Rung(echoes=0, messages=2, all_rows=1, orders=7)
    """
    return Rung(value >> 60, (value >> 48) & 0xFFF, (value >> 32) & 0xFFFF, value & 0xFFFFFFFF)


class Doorbell:
    """An eventfd, or a pipe where there is none.

    Args:
        descriptors: those of a bell that another process has made: one to listen at, one to ring.

    Attributes:
        ring: adds a number to the sum.
        take: the sum since the last time; waits while there is none.
    """

    def __init__(self, descriptors: tuple[int, ...] | None = None) -> None:
        if descriptors is None:
            descriptors = (os.eventfd(0),) * 2 if hasattr(os, "eventfd") else os.pipe()
        self.descriptors = descriptors
        ring, take = (os.eventfd_write, os.eventfd_read) if hasattr(os, "eventfd") else (_write, _read)
        self.ring: Callable[[int], object] = partial(ring, descriptors[1])
        self.take: Callable[[], int] = partial(take, descriptors[0])
        self._close = weakref.finalize(self, _close_all, set(descriptors))
        # At exit an env that is still open closes itself, and rings for that.
        self._close.atexit = False

    def fileno(self) -> int:
        """Readable while something has been rung and not taken."""
        return self.descriptors[0]

    def close(self) -> None:
        """Give the descriptors back. Idempotent."""
        self._close()


def _write(descriptor: int, value: int) -> None:
    os.write(descriptor, _NUMBER.pack(value))


def _read(descriptor: int) -> int:
    numbers = os.read(descriptor, _NUMBER.size * 512)
    return sum(number for (number,) in _NUMBER.iter_unpack(numbers))


def _close_all(descriptors: set[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
