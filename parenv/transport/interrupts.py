"""When Ctrl-C is heard: while something is waited for, and not in the middle of what is done wholly or not at all."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

PATIENCE_S = 1.0
"""How long after a Ctrl-C that was not heard yet another one is heard at once: nothing here takes that long."""


class _Interrupts:
    """Of the main thread, which alone hears of signals."""

    waits, noted_s = False, 0.0

    def hear(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.waits or 0.0 < self.noted_s < now - PATIENCE_S:
            self.noted_s = 0.0
            signal.default_int_handler(signum, frame)
        self.noted_s = self.noted_s or now


_interrupts = _Interrupts()


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Have Ctrl-C wait until this is done or :func:`heard`; a handler of the user's own is called as ever."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    _interrupts.noted_s, _interrupts.waits = 0.0, False
    signal.signal(signal.SIGINT, _interrupts.hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _raise_noted()


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Have Ctrl-C interrupt this at once, and before it begins if it came already."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _interrupts.waits = True
    try:
        _raise_noted()
        yield
    finally:
        _interrupts.waits = False


def _raise_noted() -> None:
    if _interrupts.noted_s:
        _interrupts.noted_s = 0.0
        raise KeyboardInterrupt
