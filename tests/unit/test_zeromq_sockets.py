"""Check the sockets of the driver and its workers: messages arrive in order, and the driver never blocks."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from scripts import printed_by

from parenv.platform import system
from parenv.transport.waiting import Waiting
from parenv.transport.zeromq import DriverSocket, WorkerSocket

LARGE = [b"head", b"", bytes(3_000_000)]
"""Message that is larger than the buffers of the system."""
LIMIT_S = 60.0


class Driver(DriverSocket):
    """A driver socket with a folder of its own for addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = system.address_folder()
        system.make_address_folder(self.folder)

    def open(self, worker: int, generation: int, folder: str | None = None) -> int:
        return super().open(worker, generation, self.folder)

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


def worker_socket(driver: Driver, worker: int, generation: int = 0, pid: int | None = None) -> WorkerSocket:
    return WorkerSocket(os.dup(driver.open(worker, generation)), os.getpid() if pid is None else pid)


def next_message(driver: Driver) -> list[bytes]:
    waiting, deadline = Waiting(), time.monotonic() + LIMIT_S
    waiting.watch(driver)
    while (message := driver.receive()) is None:
        assert time.monotonic() < deadline, "no message has arrived"
        waiting.wait(LIMIT_S)
    return message


def test_messages_arrive_whole_and_in_order_both_ways(driver: Driver) -> None:
    workers = [worker_socket(driver, worker) for worker in range(2)]
    for worker in (0, 1):
        driver.send(worker, 0, [b"first", b"%d" % worker])
        driver.send(worker, 0, [memoryview(b"second")])
    assert driver.receive() is None
    for worker, end in enumerate(workers):
        assert end.receive(block=True) == [b"first", b"%d" % worker]
        assert end.receive(block=True) == [b"second"]
        assert end.receive(block=False) is None
        end.send([b"answer", b"%d" % worker])
        assert next_message(driver) == [b"answer", b"%d" % worker]
        end.close()


def test_messages_sent_before_a_worker_listens_arrive_in_order(driver: Driver) -> None:
    descriptor = os.dup(driver.open(0, 0))
    for number in range(2_000):
        driver.send(0, 0, [b"%d" % number])
    end = WorkerSocket(descriptor, os.getpid())
    assert [end.receive(block=True) for _ in range(2_000)] == [[b"%d" % number] for number in range(2_000)]
    end.close()


def test_a_driver_does_not_wait_for_a_worker_that_does_not_read(driver: Driver) -> None:
    end = worker_socket(driver, 0)
    for _ in range(3):
        driver.send(0, 0, LARGE)
    assert [end.receive(block=True) for _ in range(3)] == [LARGE] * 3
    end.close()


def test_a_worker_sends_more_than_a_socket_takes_while_the_driver_reads(driver: Driver) -> None:
    end = worker_socket(driver, 0)
    writer = threading.Thread(target=end.send, args=(LARGE,))
    writer.start()
    assert next_message(driver) == LARGE
    writer.join()
    end.close()


def test_messages_to_and_from_an_earlier_process_are_dropped(driver: Driver) -> None:
    before = worker_socket(driver, 0)
    before.send([b"not heard any more"])
    after = worker_socket(driver, 0, generation=1)
    driver.send(0, 0, [b"for the first"])
    driver.send(0, 1, [b"for the second"])
    driver.send(5, 0, [b"for one that there never was"])
    assert after.receive(block=True) == [b"for the second"]
    assert driver.receive() is None
    before.close()
    after.close()


def test_a_worker_that_is_started_twice_in_one_generation_is_another_process(driver: Driver) -> None:
    before, after = worker_socket(driver, 0), worker_socket(driver, 0)
    driver.send(0, 0, [b"for the second"])
    assert after.receive(block=True) == [b"for the second"]
    before.close()
    after.close()


def test_sending_to_a_worker_that_is_gone_is_not_an_error(driver: Driver) -> None:
    worker_socket(driver, 0).close()
    driver.send(0, 0, [b"to nobody"])
    driver.drop(0)
    driver.send(0, 0, [b"to nobody"])
    assert driver.receive() is None


def test_any_other_failure_of_zeromq_is_raised() -> None:
    driver = Driver()
    driver.open(0, 0)
    driver.close()
    with pytest.raises(zmq.ZMQError, match="Socket operation on non-socket"):
        driver.send(0, 0, [b"x"])


@pytest.mark.linux  # Elsewhere, a folder that others cannot enter has the names.
def test_only_the_driver_is_connected_to_a_worker(driver: Driver) -> None:
    end = worker_socket(driver, 0, pid=os.getppid())
    context = zmq.Context()
    with context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.connect(driver._peers[0].address)
        stranger.send_multipart([b"from a stranger", b"."])
        driver.send(0, 0, [b"from a process that is not the driver"])
        assert not end._socket.poll(500)
    context.term()
    end.close()


@pytest.mark.linux  # Elsewhere, a folder that others cannot enter has the names.
def test_a_socket_has_no_name_in_the_file_system(driver: Driver) -> None:
    with socket.socket(fileno=os.dup(driver.open(0, 0))) as listening:
        assert listening.getsockname()[0] == 0


def test_a_connection_waits_for_a_descriptor_instead_of_ending_the_process() -> None:
    script = """
import os, resource, shutil, time
from parenv.platform import system
from parenv.transport.zeromq import DriverSocket, WorkerSocket
socket, folder = DriverSocket(), system.address_folder()
system.make_address_folder(folder)
before = len(os.listdir("/dev/fd"))
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
descriptor = socket.open(0, 0, folder)
try:
    os.dup(0)
except OSError as error:
    print(error)
socket.send(0, 0, [b"in time"])
time.sleep(0.3)  # ZeroMQ tries again every 0.1 s and does not report it.
resource.setrlimit(resource.RLIMIT_NOFILE, (before + 100, hard))
end = WorkerSocket(os.dup(descriptor), os.getpid())
print(end.receive(block=True))
shutil.rmtree(folder, ignore_errors=True)
"""
    assert printed_by(script) == "[Errno 24] Too many open files\n[b'in time']\n"


def test_a_signal_handler_that_raises_neither_repeats_nor_splits_a_sent_message(
    driver: Driver,
) -> None:
    """Python runs a handler after the system call that the signal interrupted, at the latest at the next line."""
    end, results = worker_socket(driver, 0), set[int]()
    for line in range(1, 200):
        with contextlib.suppress(InterruptedError), raising_at(line):
            driver.send(0, 0, [b"cut", b"", b"short"])
        driver.send(0, 0, [b"last", b""])
        received = [end.receive(block=True)]
        while received[-1] != [b"last", b""]:
            received.append(end.receive(block=True))
        assert received in ([[b"last", b""]], [[b"cut", b"", b"short"], [b"last", b""]])
        results.add(len(received))
    assert results == {1, 2}
    end.close()


def test_a_signal_handler_that_raises_does_not_split_received_messages(driver: Driver) -> None:
    end, results = worker_socket(driver, 0), set[bytes]()
    for line in range(1, 200):
        end.send([b"cut", b"", b"short"])
        end.send([b"last", b""])
        assert driver._socket.poll(LIMIT_S * 1000)
        with contextlib.suppress(InterruptedError), raising_at(line):
            driver.receive()
        first, *others = [next_message(driver)]
        if first != [b"last", b""]:
            others.append(next_message(driver))
        assert [first, *others] in ([[b"last", b""]], [[b"cut", b"", b"short"], [b"last", b""]])
        results.add(first[0])
    assert results == {b"cut", b"last"}
    end.close()


@contextlib.contextmanager
def raising_at(line: int) -> Iterator[None]:
    """Raise an exception at the ``line``-th line that the block executes, as a signal handler may."""
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
