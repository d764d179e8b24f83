"""Check that a signal handler that raises at any line leaves all handlers in place and the pool closed."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

import pytest

from parenv.crew import one_thread
from parenv.crew.one_thread import OneThread
from parenv.process.forks import Owner
from parenv.transport import interrupts
from parenv.transport.interrupts import HandlersDeferred

HANDLED = (signal.SIGUSR2, signal.SIGTERM, signal.SIGWINCH)


class _HandledError(Exception):
    """Raised by the signal handler under test."""


def handle(signum: int, frame: FrameType | None) -> None:
    raise _HandledError


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [signal.signal(signum, handle) for signum in HANDLED]
    yield
    for signum, handler in zip(HANDLED, before, strict=True):
        signal.signal(signum, handler)


def reaches(at: int, signum: int, function: Callable[[], object]) -> bool:
    """Call a function and raise a signal when the modules under test execute their ``at``-th line.

    Returns:
        Whether that line was reached.
    """
    lines = count(1)
    reached = False

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal reached
        if frame.f_code.co_filename not in (interrupts.__file__, one_thread.__file__):
            return None
        if event == "line" and next(lines) == at:
            reached = True
            signal.raise_signal(signum)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(_HandledError):
            function()
    finally:
        sys.settrace(before)
    return reached


def defer_handlers() -> None:
    with HandlersDeferred():
        pass


@pytest.mark.parametrize("signum", HANDLED)
def test_all_handlers_are_restored(signum: int) -> None:
    for at in count(1):
        if not reaches(at, signum, defer_handlers):
            break
        assert [signal.getsignal(one) for one in HANDLED] == [handle] * len(HANDLED), at
    assert at > 10


class Pool:
    """Pool that only records whether it was closed.

    Args:
        closes: List to which each close appends its time limit.
    """

    def __init__(self, closes: list[float]) -> None:
        waits = type("Waits", (), {"stopped": None})()
        self.one_thread = OneThread(self, "the pool", Owner("the pool"), waits, closes.append, 60.0)


@pytest.mark.parametrize("signum", HANDLED)
def test_a_pool_is_closed_at_the_latest_when_it_is_garbage_collected(signum: int) -> None:
    gc.collect()
    gc.freeze()  # Each collection below examines only new objects.
    for at in count(1):
        closes: list[float] = []
        pool = Pool(closes)
        reached = reaches(at, signum, pool.one_thread.close)
        del pool
        gc.collect()
        assert closes, at
        if not reached:
            break
    assert at > 20
