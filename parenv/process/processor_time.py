"""Processor time and memory of a process, its time in the queue for a core, and the load of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class ProcessorTime(NamedTuple):
    """Times of a thread since its start.

    Args:
        used_s: Seconds on a core.
        queued_s: Seconds for which the thread could run but had no core.
    """

    used_s: float
    queued_s: float


def processor_time(pid: int | None = None) -> ProcessorTime | None:
    """Return the times of a process's main thread, by default of this thread, or ``None`` if they are not counted."""
    try:
        used, queued, _ = Path(f"/proc/{pid or 'thread-self'}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return ProcessorTime(int(used) * 1e-9, int(queued) * 1e-9)


def is_asleep(pid: int) -> bool:
    """Tell whether the main thread of a process sleeps, and so neither runs nor waits for a core or a disk."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] == "S"
    except OSError:
        return False


def resident_bytes() -> int:
    """Return the bytes of memory that this process shares with no other, or 0 if the system does not count them."""
    try:
        _, resident, shared = Path("/proc/self/statm").read_text().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")


def num_threads() -> int:
    """Return the number of threads of this process, or 0 if the system does not list them."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def running_threads() -> int:
    """Return the number of threads of the machine that run or wait for a core now, at least 1 (this one)."""
    try:
        return max(1, int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]))
    except (OSError, ValueError, IndexError):
        return 1
