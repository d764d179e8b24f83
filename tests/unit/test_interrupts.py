"""Signal handlers that are postponed: whatever line a signal arrives at, all handlers are in place afterwards."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from parenv.transport import interrupts
from parenv.transport.interrupts import HandlersDeferred

HANDLED = (signal.SIGUSR2, signal.SIGTERM, signal.SIGWINCH)


class _HandledError(Exception):
    """A signal handler has raised."""


def handle(signum: int, frame: FrameType | None) -> None:
    raise _HandledError


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [signal.signal(signum, handle) for signum in HANDLED]
    yield
    for signum, handler in zip(HANDLED, before, strict=True):
        signal.signal(signum, handler)


def lines_of_a_block(at: int, signum: int) -> int:
    """Raise a signal at one line of :class:`HandlersDeferred`; return the number of its lines that were executed."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != interrupts.__file__:
            return None
        if event == "line":
            count += 1
            if count == at:
                signal.raise_signal(signum)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(_HandledError), HandlersDeferred():
            pass
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("signum", HANDLED)
def test_whenever_a_handler_raises_all_handlers_are_in_place_afterwards(signum: int) -> None:
    for at in range(1, lines_of_a_block(-1, signum) + 1):
        lines_of_a_block(at, signum)
        assert [signal.getsignal(one) for one in HANDLED] == [handle] * len(HANDLED), at
