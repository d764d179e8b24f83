"""When Ctrl-C is heard: while something is waited for, and not in the middle of what is done wholly or not at all."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class _Interrupts:
    """Of the main thread, which alone hears of signals."""

    noted = waits = False

    def hear(self, signum: int, frame: FrameType | None) -> None:
        # A second one comes from somebody who has waited long enough.
        if self.waits or self.noted:
            self.noted = False
            signal.default_int_handler(signum, frame)
        self.noted = True


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
    _interrupts.noted = _interrupts.waits = False
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
    if _interrupts.noted:
        _interrupts.noted = False
        raise KeyboardInterrupt
