"""The descriptors of this process: those of the standard streams, and room for those that workers need."""

from __future__ import annotations

import errno
import os
import resource

PER_WORKER = 3
"""The listening socket of a worker, the connection to it, and its wake-up."""
FOR_ALL = 40
"""For the pool itself, for ZeroMQ, for a fork server that is being started, and for the user's files."""


def occupy_standard_descriptors() -> None:
    """Put nothing in the place of standard streams that are closed, before anything is opened.

    The next thing to be opened would be in their place instead: memory or a socket, which every process that is started
    inherits as its standard output, and prints to.
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
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        raise OSError(
            errno.EMFILE,
            f"num_workers={num_workers} needs {needed} file descriptors, but this process may open only "
            f"{max(0, free)} more (hard limit: {hard}). Raise the limit with `ulimit -Hn`, or use fewer workers",
        )


def free_descriptors(wanted: int) -> int:
    """Raise the soft limit, if the hard limit allows it, until so many more can be opened; how many can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    if soft == resource.RLIM_INFINITY:
        return wanted
    limit = used + wanted if hard == resource.RLIM_INFINITY else min(used + wanted, hard)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(limit, soft) - used


def check_free(count: int) -> None:
    """Raise an error unless this process may open so many descriptors now.

    Raises:
        OSError: It may not.
    """
    opened = list[int]()
    try:
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        message = f"{count} file descriptors must be free, got {len(opened)}. Close files, or raise `ulimit -n`"
        raise OSError(error.errno, message) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)
