"""Signals that are noted, for a program that reacts to them when it is ready."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection
from types import FrameType
from typing import Any

from parenv.errors import ConfigurationError
from parenv.platform import system
from parenv.process.forks import Owner

DUPLICATE_S = 1.0
"""Seconds within which a second SIGTERM counts as the first one. Schedulers send it to a group and to each process."""


class NotedSignals:
    """Notes signals in a ``with`` block. The previous handlers are in place again after it.

    A second SIGTERM has the effect that it would have without the block.

    Args:
        signals: Numbers of the signals.

    Attributes:
        first: First signal that has arrived, or ``None``.

    Raises:
        ConfigurationError: A number belongs to no signal that can be handled.
    """

    def __init__(self, signals: Collection[int]) -> None:
        self._signals = {_checked(signum) for signum in signals}
        self._before: dict[signal.Signals, Any] = {}
        self._owner = Owner("the run")
        self._terminated_s: float | None = None
        self.first: signal.Signals | None = None

    def check_thread(self) -> None:
        """Raise ``ConfigurationError`` unless this thread may handle the signals."""
        thread = threading.current_thread()
        if self._signals and thread is not threading.main_thread():
            raise ConfigurationError(
                f"resumable must be entered in the main thread, which receives all signals, got {thread.name}. "
                "Pass signals=() to save without signals."
            )

    def __enter__(self) -> None:
        self.first = self._terminated_s = None
        self._owner = Owner("the run")
        for signum in self._signals:
            self._before[signum] = signal.signal(signum, self._note)

    def __exit__(self, *raised: object) -> None:
        for signum in list(self._before):
            self._put_back(signum)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        # A forked child has the handler too. It must end when multiprocessing terminates it.
        if not self._owner.is_here:
            self._act_as_before(signal.Signals(signum))
            return
        self.first = self.first or signal.Signals(signum)
        if signum != signal.SIGTERM:
            return
        now = time.monotonic()
        if self._terminated_s is None:
            self._terminated_s = now
        elif now > self._terminated_s + DUPLICATE_S:
            self._act_as_before(signal.SIGTERM)

    def _act_as_before(self, signum: signal.Signals) -> None:
        self._put_back(signum)
        os.kill(os.getpid(), signum)

    def _put_back(self, signum: signal.Signals) -> None:
        # Handlers that were not installed by Python cannot be installed again.
        before = self._before.pop(signum)
        signal.signal(signum, signal.SIG_DFL if before is None else before)


def _checked(signum: Any) -> signal.Signals:
    try:
        found = signal.Signals(signum)
    except ValueError:
        raise ConfigurationError(f"signals must contain signal numbers, got {signum!r}. Pass signal.SIGTERM.") from None
    if found in system.FINAL_SIGNALS:
        raise ConfigurationError(
            f"signals must contain signals that can be handled, got {found.name}. Leave it out: a killed run "
            "continues from its last checkpoint."
        )
    return found
