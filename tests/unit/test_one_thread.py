"""Check that one thread at a time uses a pool, and that any thread or signal handler may close it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from parenv.crew.one_thread import OneThread
from parenv.errors import PoolBusyError, PoolClosedError
from parenv.process.forks import Owner


class Calls:
    """Pool that records the order in which it was stopped and closed."""

    stopped: Callable[[], BaseException] | None = None

    def __init__(self, close_timeout_s: float = 60.0) -> None:
        self.did: list[str] = []
        self.within_s: list[float] = []
        self.in_a_call = threading.Event()
        self.one_thread = OneThread(self, "the pool", Owner("the pool"), self, self.close, close_timeout_s)

    def close(self, within_s: float) -> None:
        self.did.append("closed")
        self.within_s.append(within_s)

    def wait(self) -> None:
        """Make a call that ends only when another thread closes the pool."""
        with self.one_thread:
            self.in_a_call.set()
            while self.stopped is None:
                pass
            self.did.append("stopped")
            raise self.stopped()


@pytest.fixture
def sigterm() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Return a function that installs a handler of SIGTERM for the duration of a test."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: void(signal.signal(signal.SIGTERM, lambda *_: void(handler())))
    signal.signal(signal.SIGTERM, before)


def void(value: object) -> None:
    pass


def test_a_close_from_another_thread_ends_the_call_in_progress_and_then_closes() -> None:
    calls = Calls()
    with ThreadPoolExecutor(1) as other:
        call = other.submit(calls.wait)
        calls.in_a_call.wait()
        with pytest.raises(PoolBusyError, match=r"^MainThread cannot use the pool while another thread uses it"):
            calls.one_thread.begin()
        calls.one_thread.close()
        with pytest.raises(PoolClosedError, match=r"^the pool is closed$"):
            call.result()
    assert calls.did[:2] == ["stopped", "closed"]


def test_a_call_that_does_not_end_in_time_closes_when_it_ends() -> None:
    calls, go_on = Calls(close_timeout_s=0.01), threading.Event()

    def call() -> None:
        with calls.one_thread:
            calls.in_a_call.set()
            go_on.wait()

    with ThreadPoolExecutor(1) as other:
        ended = other.submit(call)
        calls.in_a_call.wait()
        words = r"^the pool cannot be closed yet, because a call in another thread did not end within"
        with pytest.raises(PoolBusyError, match=words):
            calls.one_thread.close()
        assert calls.did == []
        go_on.set()
        ended.result()
    assert calls.did == ["closed"]
    with pytest.raises(PoolClosedError, match=r"^the pool is closed$"):
        calls.one_thread.begin()


def test_a_close_from_a_signal_handler_waits_for_the_call_that_it_interrupts(sigterm: Any) -> None:
    calls = Calls()
    sigterm(lambda: calls.one_thread.close(2.5))
    with calls.one_thread:
        signal.raise_signal(signal.SIGTERM)
        assert calls.did == []
        with pytest.raises(PoolBusyError, match="cannot use the pool in the middle of another call"):
            calls.one_thread.begin()
    assert (calls.did, calls.within_s) == (["closed"], [2.5])


def test_a_signal_handler_that_raises_does_not_interrupt_closing(sigterm: Any) -> None:
    calls, handled = Calls(), []

    def close(within_s: float) -> None:
        signal.raise_signal(signal.SIGTERM)
        calls.close(within_s)

    def handle() -> None:
        calls.one_thread.close()
        handled.append(list(calls.did))
        raise SystemExit(3)

    sigterm(handle)
    calls.one_thread._close = close
    with pytest.raises(SystemExit):
        calls.one_thread.close()
    assert handled == [["closed"]]
    assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None)


def test_a_thread_in_a_call_ends_silently_when_the_interpreter_exits() -> None:
    calls = Calls()
    with ThreadPoolExecutor(1) as other:
        call = other.submit(calls.wait)
        calls.in_a_call.wait()
        calls.one_thread.end_of_use()
        with pytest.raises(SystemExit):  # SystemExit ends a thread without a traceback.
            call.result()
    assert calls.did[:2] == ["stopped", "closed"]


def test_an_unfinished_call_does_not_keep_the_exit_of_the_interpreter_from_closing() -> None:
    calls = Calls()
    calls.one_thread.begin()
    calls.one_thread.end_of_use()
    assert calls.did == ["closed"]
