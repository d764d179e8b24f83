"""Ends what a comparison has started, even where the comparison itself is killed: what is stopped notices nothing.

Run by ``asked.py``. Each line of input is the process that leads a session: it has begun, or, with a minus, ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import psutil


def members(leader: int) -> list[psutil.Process]:
    """A process and its offspring, those in its session too whose parent has gone."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == leader:
                found.add(process)
    with contextlib.suppress(psutil.NoSuchProcess):
        found |= set(psutil.Process(leader).children(recursive=True))
    return [process for process in found if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def kill(leader: int) -> None:
    """Kill them all, and those that they start meanwhile; trackers of resources first tidy up after the others."""
    for attempt in range(4):
        found = members(leader)
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                spared = attempt == 0 and any("resource_tracker" in word for word in process.cmdline())
                process.send_signal(signal.SIGCONT if spared else signal.SIGKILL)
        psutil.wait_procs(found, timeout=0.5)  # Dead processes remain until their parent waits for them.


if __name__ == "__main__":
    running: set[int] = set()
    for line in sys.stdin:
        if (leader := int(line)) > 0:
            running.add(leader)
        else:
            running.discard(-leader)
    for each in running:
        kill(each)
