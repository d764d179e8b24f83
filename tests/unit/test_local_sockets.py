"""Pairs of sockets between a driver and its workers: whole messages, in order, and nobody waits who must not."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from parenv.transport.local_sockets import DriverSocket, WorkerSocket

LARGE = [b"head", b"", bytes(3_000_000)]
"""More than a socket takes at once."""


@pytest.fixture
def driver() -> Iterator[DriverSocket]:
    driver = DriverSocket()
    yield driver
    driver.close()


def end_of(driver: DriverSocket, worker: int, generation: int = 0) -> WorkerSocket:
    return WorkerSocket(os.dup(driver.open(worker, generation)))


def heard(driver: DriverSocket) -> list[bytes]:
    while (message := driver.receive()) is None:
        assert select.select([driver], [], [], 60.0)[0], "nothing has come"
    return message


def test_messages_arrive_whole_and_in_order_both_ways(driver: DriverSocket) -> None:
    workers = [end_of(driver, worker) for worker in range(2)]
    for worker in (0, 1):
        driver.send(worker, 0, [b"first", b"%d" % worker])
        driver.send(worker, 0, [memoryview(b"second")])
    assert driver.receive() is None
    for worker, end in enumerate(workers):
        assert end.receive(block=True) == [b"first", b"%d" % worker]
        assert end.receive(block=True) == [b"second"]
        assert end.receive(block=False) is None
        end.send([b"answer", b"%d" % worker])
        assert heard(driver) == [b"answer", b"%d" % worker]
        end.close()


def test_a_driver_does_not_wait_for_a_worker_that_does_not_read(driver: DriverSocket) -> None:
    end = end_of(driver, 0)
    for _ in range(3):
        driver.send(0, 0, LARGE)
    received: list[object] = []
    reader = threading.Thread(target=lambda: received.extend(end.receive(block=True) for _ in range(3)))
    reader.start()
    while reader.is_alive():
        # It is readable for as long as the worker takes more of what is still to be sent.
        select.select([driver], [], [], 0.1)
        assert driver.receive() is None
    assert received == [LARGE] * 3
    end.close()


def test_a_worker_sends_more_than_a_socket_takes_while_the_driver_reads(driver: DriverSocket) -> None:
    end = end_of(driver, 0)
    writer = threading.Thread(target=end.send, args=(LARGE,))
    writer.start()
    assert heard(driver) == LARGE
    writer.join()
    end.close()


def test_what_is_for_an_earlier_process_reaches_nobody_and_what_it_says_neither(driver: DriverSocket) -> None:
    before = end_of(driver, 0)
    before.send([b"not heard any more"])
    after = end_of(driver, 0, generation=1)
    driver.send(0, 0, [b"for the first"])
    driver.send(0, 1, [b"for the second"])
    driver.send(5, 0, [b"for one that there never was"])
    assert after.receive(block=True) == [b"for the second"]
    assert driver.receive() is None
    before.close()
    after.close()


@pytest.mark.parametrize("act", ["reads", "writes"])
def test_a_worker_whose_driver_is_gone_ends(act: str, driver: DriverSocket) -> None:
    descriptor = os.dup(driver.open(0, 0))
    pid = os.fork()
    if pid == 0:
        driver.close()
        end = WorkerSocket(descriptor)
        while True:
            _ = end.receive(block=True) if act == "reads" else end.send(LARGE)
    os.close(descriptor)
    driver.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_a_signal_handler_that_raises_while_a_message_is_sent_neither_doubles_nor_tears_it(
    driver: DriverSocket,
) -> None:
    """Python runs a handler behind the system call during which a signal came: at the first line after it at latest."""
    end = end_of(driver, 0)
    for line in range(1, 30):
        with contextlib.suppress(InterruptedError), raising_at(line):
            driver.send(0, 0, [b"cut short"])
        driver.send(0, 0, [b"last"])
        received = [end.receive(block=True)]
        while received[-1] != [b"last"]:
            received.append(end.receive(block=True))
        assert received in ([[b"last"]], [[b"cut short"], [b"last"]])
    end.close()


@contextlib.contextmanager
def raising_at(line: int) -> Iterator[None]:
    """Raises at a line that is run meanwhile, as a signal handler may."""
    lines = 0

    def trace(frame: object, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines == line and event == "line":
            raise InterruptedError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
