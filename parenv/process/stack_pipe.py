"""A pipe to which worker processes write their stacks when they are asked for them."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

STACK_SIGNAL = signal.SIGUSR1
"""Has a worker write its stack to the pipe that it was started with, even if it holds the GIL."""
STACK_TIMEOUT_S = 15.0
"""Seconds that a worker has to write its stack. The driver does not wait if it is stopped or ignores the signal."""
LOOK_S = 0.05
"""How often it is looked whether a worker can still be expected to write."""


class StackPipe:
    """Both ends of it.

    Attributes:
        descriptor: the end that workers write to.
    """

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        os.set_blocking(self._read, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def clear(self) -> None:
        """Drop what another worker has written too late."""
        while self._poll.poll(0):
            os.read(self._read, 1 << 16)

    def read(self, pid: int, timeout_s: float = STACK_TIMEOUT_S) -> str:
        """The stack of a process that has been sent :data:`STACK_SIGNAL`, or what there is of it by the limit."""
        text, deadline = b"", time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            # Looked at before the pipe is, so that what a process has written until then is read.
            done = is_stopped(pid) or ignores_stack_signal(pid) or (bool(text) and not is_handling(pid))
            if self._poll.poll(0.0 if done else LOOK_S * 1000.0):
                text += os.read(self._read, 1 << 16)
            elif done:
                break
        return text.decode(errors="replace")

    def close(self) -> None:
        """Close both ends."""
        os.close(self._read)
        os.close(self.descriptor)


def is_stopped(pid: int) -> bool:
    """Whether a process can write nothing, because it is stopped or has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return pid > 0
    return state in "TtZX"


def ignores_stack_signal(pid: int) -> bool:
    """Whether a process discards :data:`STACK_SIGNAL`, because an environment has set ``SIG_IGN`` for it."""
    return _has_stack_signal(pid, "SigIgn")


def is_handling(pid: int) -> bool:
    """Whether a process is writing its stack.

    Silence does not tell: on a busy machine a process may get no processor between two lines. But while the handler of
    a signal runs, the kernel holds back that signal from the thread that runs it, which is the main one. (Threads of
    native libraries may hold back every signal, always.)
    """
    return _has_stack_signal(pid, "SigBlk")


def _has_stack_signal(pid: int, mask: str) -> bool:
    try:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return False
    return bool(int(lines[mask], 16) >> (STACK_SIGNAL - 1) & 1)
