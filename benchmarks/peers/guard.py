"""Process that kills the systems of a comparison if the comparison is killed.

Stopped systems cannot notice the end of the comparison. ``asked.py`` starts this script and writes the pid of each
system when it starts, and the negative pid when it has ended. A system leads its own session. If the input ends, the
script kills the sessions that are left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import psutil


def members(leader: int) -> list[psutil.Process]:
    """Return the live processes of a session and all descendants of its leader.

    Processes whose parent has died are still found by their session.
    """
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == leader:
                found.add(process)
    with contextlib.suppress(psutil.NoSuchProcess):
        found |= set(psutil.Process(leader).children(recursive=True))
    return [process for process in found if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def kill(leader: int) -> None:
    """Kill the processes of a session, in four rounds because they may start others meanwhile.

    The resource trackers of ``multiprocessing`` are spared in the first round, so that they can clean up.
    """
    for attempt in range(4):
        found = members(leader)
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                spared = attempt == 0 and any("resource_tracker" in word for word in process.cmdline())
                process.send_signal(signal.SIGCONT if spared else signal.SIGKILL)
        psutil.wait_procs(found, timeout=0.5)  # Zombies stay until their parent waits for them.


if __name__ == "__main__":
    running: set[int] = set()
    for line in sys.stdin:
        if (leader := int(line)) > 0:
            running.add(leader)
        else:
            running.discard(-leader)
    for each in running:
        kill(each)
