"""Processes that a test has left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

FORK_SERVER_WORDS = "parenv.process.fork_server"


def processes_left(others: Iterable[psutil.Process] = ()) -> list[str]:
    """What runs under this process but fork servers, which outlive the pools, and others that are meant to run.

    The resource tracker of multiprocessing, which some libraries start, tqdm among them, lives as long as this process.
    """
    meant = {process.pid for process in others}
    running = [process for process in _descendants(os.getpid()) if process.pid not in meant]
    return [f"process {process}" for process in running if not _may_stay(process)]


def _descendants(pid: int) -> Iterator[psutil.Process]:
    """Its children, and theirs. psutil looks at all processes of the machine, which takes ten times as long."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            for child in map(psutil.Process, map(int, task.read_text().split())):
                yield child
                yield from _descendants(child.pid)


def is_fork_server(process: psutil.Process) -> bool:
    return any(FORK_SERVER_WORDS in word for word in process.cmdline())


def _may_stay(process: psutil.Process) -> bool:
    try:
        return process.ppid() == os.getpid() and (is_fork_server(process) or _tracks_resources(process))
    except psutil.NoSuchProcess:
        return True


def _tracks_resources(process: psutil.Process) -> bool:
    return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
