"""Futexes: a process sleeps on a number in shared memory until the number changes.

A process that waits for an eventfd costs its waker a system call. All processes that sleep on a futex, or those that
it chooses by bits, cost their waker one system call together.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from typing import Any

from parenv.platform import system

_WAIT_BITSET, _WAKE_BITSET = 9, 10
# The numbers of the system call on Linux, by machine. On an unknown machine, each worker has a wake-up of its own.
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238} if system.HAS_FUTEXES else {}
_NUMBER = _NUMBERS.get(platform.machine())
_ALL_SLEEPERS = 0x7FFFFFFF
EVERYONE = 0xFFFFFFFF
"""Bits of all processes."""

if _NUMBER is not None:
    _syscall = ctypes.CDLL(None, use_errno=True).syscall
    _syscall.restype = ctypes.c_long
    _syscall.argtypes = (
        *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int),
        *(ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint),
    )


class Futex:
    """A number in shared memory on which processes sleep.

    Args:
        buffer: Shared memory. It stays mapped as long as this object exists.
        offset: Offset of the number in bytes, a multiple of four.

    Attributes:
        number: The number, one uint32. A process that has changed it calls :meth:`wake`.
    """

    def __init__(self, buffer: Any, offset: int) -> None:
        self.number = memoryview(buffer)[offset : offset + 4].cast("I")
        self._word = ctypes.c_uint32.from_buffer(buffer, offset)
        self._address = ctypes.addressof(self._word)

    def wait(self, seen: int, bits: int) -> None:
        """Sleep while the number is ``seen``. The call may return early, so the caller looks again.

        Args:
            seen: Value of the number when the caller last looked.
            bits: Bits of this process.
        """
        # The kernel compares the number and puts this process to sleep in one step, so no wake-up comes between.
        if _syscall(_NUMBER, self._address, _WAIT_BITSET, seen, None, None, bits) < 0:
            failure = ctypes.get_errno()
            if failure not in (errno.EAGAIN, errno.EINTR):
                raise OSError(failure, os.strerror(failure))

    def wake(self, bits: int = EVERYONE) -> None:
        """Wake the sleeping processes that have one of these bits."""
        _syscall(_NUMBER, self._address, _WAKE_BITSET, _ALL_SLEEPERS, None, None, bits)


def _is_available() -> bool:
    """Try the system call, which some sandboxes refuse."""
    word = ctypes.c_uint32()
    address = ctypes.addressof(word)
    return _NUMBER is not None and _syscall(_NUMBER, address, _WAKE_BITSET, 1, None, None, EVERYONE) >= 0


AVAILABLE = _is_available()
"""Whether this machine has futexes. If not, each worker has a descriptor as its wake-up."""
