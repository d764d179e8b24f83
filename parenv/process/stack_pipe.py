"""A pipe to which worker processes write their stacks on request."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STACK_SIGNAL = signal.SIGUSR1
"""Signal that makes a worker write its stack to its pipe, even if native code holds the GIL."""
STACK_TIMEOUT_S = 15.0
"""Seconds that a worker has to write its stack. The driver does not wait if it is stopped or ignores the signal."""
PIPE_BYTES = 1 << 20
"""Size of the pipe, which holds the stacks of some hundred workers."""
LOOK_S = 0.05
"""Seconds between two checks whether the worker is still writing."""


class StackPipe:
    """Both ends of the pipe.

    Attributes:
        descriptor: Descriptor of the end that workers write to.
    """

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        # All workers have the other end, so a blocking read would not return when one of them dies.
        # A scheduler may send the signal to every process of a job. No worker may wait then until its stack is read.
        for end in (self._read, self.descriptor):
            os.set_blocking(end, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def clear(self) -> None:
        """Discard the output of a worker that wrote too late."""
        while self._poll.poll(0):
            os.read(self._read, 1 << 16)

    def read(self, pid: int, timeout_s: float = STACK_TIMEOUT_S) -> str:
        """Return the stack of a process after :data:`STACK_SIGNAL`, or the part that it writes in time."""
        text, deadline = b"", time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            # This is checked before the pipe is read, so everything that the process wrote before the check is read.
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


_own = -1


def write_stack_to(descriptor: int) -> None:
    """Have this process write its stack to a pipe on :data:`STACK_SIGNAL`."""
    global _own
    _own = descriptor
    faulthandler.register(STACK_SIGNAL, file=descriptor)


def stack_descriptor() -> int:
    """Return the pipe to which this process writes its stack, or -1."""
    return _own


@contextlib.contextmanager
def with_stack_of(pid: int | None) -> Iterator[None]:
    """Show the stack of another process in place of the stack of this one, while this process waits for it.

    This thread must wait in a call that signals interrupt. Only the main thread handles signals, so in another thread
    this changes nothing.

    Args:
        pid: Process that handles the signal and has the pipe. ``None``: this changes nothing.
    """
    if pid is None or _own < 0 or threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(signum: int, frame: Any) -> None:
        # The main process reads as long as this process blocks the signal, see is_handling.
        signal.pthread_sigmask(signal.SIG_BLOCK, {STACK_SIGNAL})
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACK_SIGNAL)
        deadline = time.monotonic() + STACK_TIMEOUT_S / 3
        while time.monotonic() < deadline and (_has_stack_signal(pid, "ShdPnd") or is_handling(pid)):
            time.sleep(LOOK_S / 10)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STACK_SIGNAL})

    _handle_by(lambda: signal.signal(STACK_SIGNAL, forward))
    try:
        yield
    finally:
        _handle_by(lambda: faulthandler.register(STACK_SIGNAL, file=_own))


def _handle_by(install: Any) -> None:
    """Change the handler. Without one, the signal would kill this process, so it is blocked meanwhile."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {STACK_SIGNAL})
    try:
        faulthandler.unregister(STACK_SIGNAL)
        install()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STACK_SIGNAL})


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped or has ended, and so writes nothing."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return pid > 0
    return state in "TtZX"


def ignores_stack_signal(pid: int) -> bool:
    """Return whether an environment has set ``SIG_IGN`` for :data:`STACK_SIGNAL`."""
    return _has_stack_signal(pid, "SigIgn")


def is_handling(pid: int) -> bool:
    """Return whether a process is writing its stack.

    A pause in the output does not mean the end, because the process may get no processor time on a busy machine. While
    a signal handler runs, the kernel blocks that signal in the main thread. Only the main thread counts, because
    threads of native libraries may block every signal all the time.
    """
    return _has_stack_signal(pid, "SigBlk")


def _has_stack_signal(pid: int, mask: str) -> bool:
    try:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return False
    return bool(int(lines[mask], 16) >> (STACK_SIGNAL - 1) & 1)
