"""Descriptors of this process: the standard streams, and room for the descriptors of workers."""

from __future__ import annotations

import errno
import math
import os

from parenv.platform import system

PER_WORKER = 2 + system.DESCRIPTORS_OF_WAKE_UP
"""Descriptors per worker: its listening socket, the connection to it, and its wake-up."""
FOR_ALL = 40
"""Descriptors for the pool itself, ZeroMQ, the start of a fork server, and the user's files."""


def occupy_standard_descriptors() -> None:
    """Open ``/dev/null`` in place of closed standard streams.

    Otherwise the next socket or shared memory would get the number of a standard stream. Every child process would
    inherit it as its standard output, and print into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def make_room(num_workers: int) -> None:
    """Make sure that this process may open as many descriptors as the workers need. Raise its soft limit if necessary.

    Raises:
        OSError: The hard limit is too low.
    """
    needed = PER_WORKER * num_workers + FOR_ALL
    if (free := free_descriptors(needed)) < needed:
        hard = system.descriptor_limits()[1]
        raise OSError(
            errno.EMFILE,
            f"num_workers={num_workers} needs {needed} file descriptors, but this process may open only "
            f"{max(0, free)} more (hard limit: {hard}). Raise the limit with `ulimit -Hn`, or use fewer workers.",
        )


def free_descriptors(wanted: int) -> int:
    """Raise the soft limit as far as needed and allowed; return the number of descriptors that can be opened."""
    (soft, hard), used = system.descriptor_limits(), system.num_descriptors()
    if soft == math.inf:
        return wanted
    if (limit := int(min(used + wanted, hard))) > soft:
        system.raise_descriptor_limit(limit)
    return max(limit, int(soft)) - used


def check_free(count: int) -> None:
    """Check that this process may open so many more descriptors now.

    Raises:
        OSError: It may open fewer.
    """
    opened = list[int]()
    try:
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        message = f"{count} file descriptors must be free, got {len(opened)}. Close files, or raise `ulimit -n`."
        raise OSError(error.errno, message) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)
