"""Search for processes that a test has left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

FORK_SERVER_WORDS = "parenv.process.fork_server"


def processes_left(others: Iterable[psutil.Process] = ()) -> list[str]:
    """Return descriptions of descendants of this process, except ``others`` and processes that may remain.

    Fork servers may remain, because they outlive the pools. So may the resource tracker of multiprocessing: libraries
    such as tqdm start it, and it lives as long as this process.
    """
    meant = {process.pid for process in others}
    running = [process for process in _descendants(os.getpid()) if process.pid not in meant]
    return [f"process {process}" for process in running if not _may_stay(process)]


def _descendants(pid: int) -> Iterator[psutil.Process]:
    """Yield all descendants of a process. psutil reads all processes of the machine, which is ten times slower."""
    if not Path("/proc").exists():
        yield from psutil.Process(pid).children(recursive=True)
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            for child in map(psutil.Process, map(int, task.read_text().split())):
                yield child
                yield from _descendants(child.pid)


def is_fork_server(process: psutil.Process) -> bool:
    return any(FORK_SERVER_WORDS in word for word in process.cmdline())


def _may_stay(process: psutil.Process) -> bool:
    try:
        is_guard = any(word.endswith("platform/guard.py") for word in process.cmdline())
        if is_guard and is_fork_server(parent := psutil.Process(process.ppid())):
            return _may_stay(parent)
        return process.ppid() == os.getpid() and (is_fork_server(process) or _tracks_resources(process))
    except psutil.NoSuchProcess:
        return True


def _tracks_resources(process: psutil.Process) -> bool:
    return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
