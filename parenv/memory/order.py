"""In which order other processes see what this one writes to shared memory.

The rule, wherever a number in shared memory says that something else there has been written: whoever writes it
puts a :func:`fence` between the thing and its number, whoever reads it puts one between the number and the thing.

x86 keeps such an order by itself; processors such as ARM's do not. It bites where a number is believed without a word
from the one that wrote it: the wake-up of worker A wakes the driver, which finds that B, whose own ring is still to
come, has finished too, and without fences would read B's observation of the step before. Where the writer's message or
wake-up is awaited, nothing is needed: both go through the kernel, and the order comes with them.
"""

from __future__ import annotations

import os
from _thread import allocate_lock


def fence() -> None:
    """Have what this process has read and written so far come before what it reads and writes from now on."""


def full_fence() -> None:
    """The same on every processor, also between what is written before and what is read behind it.

    Nothing but a lock does that from Python. What comes before a release stays before it, what comes behind an acquire
    stays behind it, and an acquire does not overtake the release before it. The lock is a new one, so that nobody has
    to wait for it.
    """
    lock = allocate_lock()
    lock.acquire()
    lock.release()
    lock.acquire()


if os.uname().machine != "x86_64":
    fence = full_fence
