"""Memory fences: the order in which other processes see writes to shared memory.

A number in shared memory may mean that other data there is complete. The writer puts a :func:`fence` between the data
and its number. The reader puts a fence between the number and the data.

x86 keeps this order by itself, and ARM does not. An example without fences: worker A wakes the main process, which
reads that worker B has finished too. The main process could then read B's observation of the previous step. No fence is
needed if the reader waits for a message or a wake-up of the writer, because those go through the kernel.
"""

from __future__ import annotations

import platform
from _thread import allocate_lock


def fence() -> None:
    """Complete all reads and writes of this process before the next ones."""


def full_fence() -> None:
    """Do the same on every processor, also between an earlier write and a later read.

    Python has only locks for this. Operations before a release stay before it, operations after an acquire stay after
    it, and an acquire does not overtake an earlier release. The lock is new, so no thread waits for it.
    """
    lock = allocate_lock()
    lock.acquire()
    lock.release()
    lock.acquire()


# Windows has another name for x86_64.
if platform.machine() not in ("x86_64", "AMD64"):
    fence = full_fence
