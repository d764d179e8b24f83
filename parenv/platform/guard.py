"""A small process beside a fork server, for systems whose kernel ends no process with another one.

It runs as a script and imports only the standard library, so it starts at once. It also acts while workers hold their
GIL, and if the main process and the fork server are killed together.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import struct
import sys

if sys.platform == "win32":
    raise ImportError("this module is for POSIX")

NUMBER = struct.Struct("=q")
"""Process id of a worker that has started, or its negative if the worker has been reaped."""


def main(leader: int, main_process: int, numbers: int, folder: str) -> None:
    """Continue the fork server when the main process ends, and kill all workers when the fork server ends.

    Args:
        leader: Process id of the fork server.
        main_process: Descriptor that reports the end of file when the main process ends.
        numbers: Descriptor of numbers of workers, which reports the end of file when the fork server ends.
        folder: Folder that is removed at the end.
    """
    poll, workers, received = select.poll(), set[int](), b""
    poll.register(main_process, select.POLLIN)
    poll.register(numbers, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if main_process in ready:
            poll.unregister(main_process)
            # A stopped process does not see the end of file.
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader, signal.SIGCONT)
        if numbers in ready:
            if not (data := os.read(numbers, 1 << 16)):
                break
            received += data
            whole = len(received) // NUMBER.size * NUMBER.size
            for (pid,) in NUMBER.iter_unpack(received[:whole]):
                workers.add(pid) if pid > 0 else workers.discard(-pid)
            received = received[whole:]
    for pid in workers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
