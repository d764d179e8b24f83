"""Windows: what a process needs for itself, because parenv starts no worker processes there yet."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from functools import partial

if sys.platform != "win32":
    raise ImportError("this module is for Windows")

import msvcrt

from parenv.platform.base import ProcessorTime as ProcessorTime
from parenv.platform.base import Usage as Usage
from parenv.platform.base import unnamed_file as _unnamed_file

NAME = "windows"
HAS_FUTEXES = False
HAS_PROCESSES = False
DESCRIPTORS_OF_WAKE_UP = 2
FORK_IS_SAFE = False
KILL_SIGNAL = signal.SIGTERM
FINAL_SIGNALS = frozenset[signal.Signals]()
PREEMPTION_SIGNALS = (signal.SIGTERM,)
_LOCKED_BYTE = 1 << 30


# Memory


def make_memory() -> int:
    """Make a file that is removed with its last descriptor."""
    return _unnamed_file()


def reserve(descriptor: int, offset: int, nbytes: int) -> None:
    """Do nothing, because the bytes of a file are allocated when the file is extended."""


# Wake-ups


def make_wake_up() -> tuple[int, int]:
    """Return both ends of a pipe. A process that steps its environments itself is never asleep, so it stays empty."""
    return os.pipe()


def notifier(descriptor: int) -> Callable[[], object]:
    """Return the function that notifies."""
    return partial(os.write, descriptor, b"\0")


def taker(descriptor: int) -> Callable[[], object]:
    """Return the function that waits for a notification."""
    return partial(os.read, descriptor, 1 << 16)


# Processes


def after_fork_in_child(call: Callable[[], object]) -> None:
    """Do nothing, because no process can be forked."""


# Machine


def usable_core_numbers() -> list[int]:
    """Return all cores."""
    return list(range(os.cpu_count() or 1))


def core_limit() -> float:
    """Return infinity, because a limit of a job object is not looked up."""
    return math.inf


def numa_nodes(cores: Collection[int]) -> list[list[int]]:
    """Return no nodes."""
    return []


def pin(cores: Collection[int]) -> None:
    """Do nothing, because there are no nodes to choose from."""


def free_bytes() -> float:
    """Return infinity, because free memory is not looked up."""
    return math.inf


def limit_memory(more: int) -> None:
    """Refuse, because nothing limits the memory of one process."""
    raise NotImplementedError


def num_descriptors() -> int:
    """Return 0, because nothing limits descriptors."""
    return 0


def descriptor_limits() -> tuple[float, float]:
    """Return no limits."""
    return math.inf, math.inf


def raise_descriptor_limit(soft: int) -> None:
    """Do nothing, because there is no limit."""


def take_lock(descriptor: int, wait: bool = False) -> bool:
    """Lock a byte far behind the content, because other processes cannot read locked bytes."""
    while True:
        try:
            # LK_LOCK fails after ten seconds.
            _lock(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK)
            return True
        except OSError:
            if not wait:
                return False


def unlock(descriptor: int) -> None:
    """Remove the lock of a file."""
    try:
        _lock(descriptor, msvcrt.LK_UNLCK)
    except OSError:
        pass


def _lock(descriptor: int, mode: int) -> None:
    at = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, mode, 1)
    finally:
        os.lseek(descriptor, at, os.SEEK_SET)


def usage() -> Usage:
    """Return the processor seconds of this process. Context switches are not counted."""
    return Usage(time.process_time(), 0, 0)


def voluntary_switches() -> int:
    """Return 0, because context switches are not counted."""
    return 0


def processor_time(pid: int | None = None) -> ProcessorTime | None:
    """Return ``None``."""
    return None


def is_asleep(pid: int) -> bool:
    """Return ``False``."""
    return False


def resident_bytes() -> int:
    """Return 0."""
    return 0


def num_threads() -> int:
    """Return the number of threads of Python."""
    return threading.active_count()


def running_threads() -> int:
    """Return 1."""
    return 1


def memory_bytes() -> int:
    """Return 0."""
    return 0


def load_average() -> float:
    """Return 0."""
    return 0.0


def processor_name() -> str:
    """Return the name that the system has put into the environment."""
    return os.environ.get("PROCESSOR_IDENTIFIER", "")
