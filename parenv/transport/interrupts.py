"""Ctrl-C interrupts waits, but not operations that must complete."""

from __future__ import annotations

import threading
import time

# The functions of the module signal convert to enums, which takes ten times as long at every rollout.
from _signal import getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Callable
from signal import SIGINT, default_int_handler, valid_signals
from types import FrameType

MAX_WAIT_S = 1.0
"""Longest wait in one system call. A signal just before the call does not interrupt it, so Ctrl-C waits for its end."""
PATIENCE_S = 1.0
"""Seconds after a deferred Ctrl-C in which a second one raises at once. No deferred block takes that long."""


class _Interrupts:
    """State of Ctrl-C in the main thread, which runs all signal handlers."""

    waits, noted_s = False, 0.0

    def hear(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.waits or 0.0 < self.noted_s < now - PATIENCE_S:
            self.noted_s = 0.0
            default_int_handler(signum, frame)
        self.noted_s = self.noted_s or now

    def raise_noted(self) -> None:
        if self.noted_s:
            self.noted_s = 0.0
            raise KeyboardInterrupt


_interrupts = _Interrupts()


class Deferred:
    """Defers Ctrl-C to the end of the block or to :class:`Heard`, unless the user has a handler for it."""

    def __enter__(self) -> None:
        self._is_ours = _is_main_thread() and getsignal(SIGINT) is default_int_handler
        if self._is_ours:
            _interrupts.noted_s, _interrupts.waits = 0.0, False
            signal(SIGINT, _interrupts.hear)

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if self._is_ours:
            signal(SIGINT, default_int_handler)
            if kind is None:
                _interrupts.raise_noted()


class HandlersDeferred:
    """Postpones the user's signal handlers until the block is done, because an exception of one would cut it off."""

    def __enter__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._noted: list[tuple[int, FrameType | None]] = []
        try:
            for signum in valid_signals() if _is_main_thread() else ():
                handler = getsignal(signum)
                if callable(handler) and handler not in (default_int_handler, _interrupts.hear):
                    self._handlers[signum] = handler
                    signal(signum, self._note)
        except BaseException:
            # A handler that is not replaced yet has raised.
            self._put_back()
            raise

    def __exit__(self, *raised: object) -> None:
        try:
            self._put_back()
        except BaseException:
            # A handler that is in place again has raised, and the others are not in place yet.
            self._put_back()
            raise
        for signum, frame in self._noted:
            self._handlers[signum](signum, frame)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._noted.append((signum, frame))

    def _put_back(self) -> None:
        for signum, handler in self._handlers.items():
            signal(signum, handler)


class Heard:
    """Lets Ctrl-C interrupt the block at once. A deferred Ctrl-C raises before the block begins."""

    def __enter__(self) -> None:
        self._is_ours = _is_main_thread()
        if self._is_ours:
            _interrupts.waits = True
            try:
                _interrupts.raise_noted()
            except BaseException:
                _interrupts.waits = False
                raise

    def __exit__(self, *raised: object) -> None:
        if self._is_ours:
            _interrupts.waits = False


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident
