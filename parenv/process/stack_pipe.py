"""A pipe to which worker processes write their stacks on request."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.platform import system
from parenv.platform.base import Handle

STACK_SIGNAL = system.STACK_SIGNAL
STACK_TIMEOUT_S = 15.0
"""Seconds that a worker has to write its stack. The driver does not wait if it is stopped or ignores the signal."""
PIPE_BYTES = 1 << 20
"""Size of the pipe, which holds the stacks of some hundred workers."""
QUIET_S = 1.0
"""Seconds without output after which a stack counts as whole, if the system does not tell whether more will come."""
LOOK_S = 0.05
"""Seconds between two checks whether the worker is still writing."""


class StackPipe:
    """Both ends of the pipe.

    Attributes:
        handle: Handle of the end that workers write to.
    """

    def __init__(self) -> None:
        self._read, writing = os.pipe()
        self.handle = Handle(writing)
        # All workers have the other end, so a blocking read would not return when one of them dies.
        # A scheduler may send the signal to every process of a job. No worker may wait then until its stack is read.
        for end in (self._read, self.handle):
            os.set_blocking(end, False)
        system.enlarge_pipe(self.handle, PIPE_BYTES)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def clear(self) -> None:
        """Discard the output of a worker that wrote too late."""
        while self._poll.poll(0):
            os.read(self._read, 1 << 16)

    def read(self, pid: int, timeout_s: float = STACK_TIMEOUT_S) -> str:
        """Return the stack of a process after :data:`STACK_SIGNAL`, or the part that it writes in time."""
        text, last = b"", time.monotonic()
        deadline = last + timeout_s
        while (now := time.monotonic()) < deadline:
            # This is checked before the pipe is read, so everything that the process wrote before the check is read.
            done = system.is_stopped(pid) or bool(system.has_signal(pid, "SigIgn", STACK_SIGNAL))
            if text and not done:
                is_writing = is_handling(pid)
                done = now - last > QUIET_S if is_writing is None else not is_writing
            if self._poll.poll(0.0 if done else LOOK_S * 1000.0):
                text, last = text + os.read(self._read, 1 << 16), time.monotonic()
            elif done:
                break
        return text.decode(errors="replace")

    def close(self) -> None:
        """Close both ends."""
        os.close(self._read)
        os.close(self.handle)


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
        while time.monotonic() < deadline and (system.has_signal(pid, "ShdPnd", STACK_SIGNAL) or is_handling(pid)):
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


def is_handling(pid: int) -> bool | None:
    """Return whether a process is writing its stack, or ``None`` if the system does not tell.

    A pause in the output does not mean the end, because the process may get no processor time on a busy machine. While
    a signal handler runs, the kernel blocks that signal in the main thread. Only the main thread counts, because
    threads of native libraries may block every signal all the time.
    """
    return system.has_signal(pid, "SigBlk", STACK_SIGNAL)
