"""Processes that a test has left behind."""

from __future__ import annotations

import os
from collections.abc import Iterable

import psutil

FORK_SERVER_WORDS = "parenv.process.fork_server"


def processes_left(others: Iterable[psutil.Process] = ()) -> list[str]:
    """What runs under this process but fork servers, which outlive the pools, and others that are meant to run.

    The resource tracker of multiprocessing, which some libraries start, tqdm among them, lives as long as this process.
    """
    running = set(psutil.Process().children(recursive=True)) - set(others)
    return [f"process {child}" for child in running if not _may_stay(child)]


def is_fork_server(process: psutil.Process) -> bool:
    return any(FORK_SERVER_WORDS in word for word in process.cmdline())


def _may_stay(process: psutil.Process) -> bool:
    try:
        return process.ppid() == os.getpid() and (is_fork_server(process) or _tracks_resources(process))
    except psutil.NoSuchProcess:
        return True


def _tracks_resources(process: psutil.Process) -> bool:
    return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
