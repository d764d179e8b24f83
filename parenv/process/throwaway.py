"""Run a function in a forked copy of this process, which is thrown away, so that nothing of this process changes."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple, NoReturn

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.platform import system

Report = Callable[[bytes], object]
_CHUNK = 1 << 16


class Thrown(NamedTuple):
    """Result of a throwaway process.

    Args:
        reported: Bytes that it has reported.
        at: Clock of :func:`time.perf_counter` at its end.
        times: Processor time of the process at its end, if it was asleep when it was killed at the limit.
    """

    reported: bytes
    at: float
    times: system.ProcessorTime | None


def throw_away(work: Callable[[Report], object], limit_s: float) -> Thrown | None:
    """Run a function in a forked process, and kill the process at the limit.

    A lock that another thread of this process holds stays locked in the forked process. So the function must need none
    of those: threads of ZeroMQ are harmless, those of an environment are not.

    The process writes nothing to the standard streams, and calls no destructors and no exit handlers, which could close
    what this process still uses.

    Args:
        work: Function that reports bytes to this process.
        limit_s: Time limit in seconds.

    Returns:
        What it has reported, or ``None`` if the system refuses another process.
    """
    reading, writing = os.pipe()
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    if pid == 0:
        _work(work, writing)
    os.close(writing)
    deadline, reported, poll = time.perf_counter() + limit_s, bytearray(), select.poll()
    poll.register(reading, select.POLLIN)
    try:
        ended = False
        while not ended and (left_s := deadline - time.perf_counter()) > 0:
            if poll.poll(left_s * 1e3):
                reported += (data := os.read(reading, _CHUNK))
                ended = not data
        at, times = time.perf_counter(), system.processor_time(pid) if not ended and system.is_asleep(pid) else None
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return Thrown(bytes(reported), at, times)


def _work(work: Callable[[Report], object], writing: int) -> NoReturn:
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        work(lambda data: os.write(writing, data))
    finally:
        os._exit(0)
