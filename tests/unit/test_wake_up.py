"""Check that every notification ends a wait, and that workers see messages before the requests that need them."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import header_bytes
from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.memory.step_signals import StepSignals, told
from parenv.process.wake_up import Answers, FutexWaiter, WakeUp, WakeUps, sleep
from parenv.worker.process import Incoming

Notify, Take = Callable[[], object], Callable[[], object]
KINDS = ("eventfd", pytest.param("futex", marks=pytest.mark.linux))
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def eventfd() -> Iterator[WakeUp]:
    made = WakeUp()
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def ends(request: pytest.FixtureRequest, eventfd: WakeUp) -> tuple[Notify, Take]:
    """Return the function that notifies a worker, and the function with which the worker waits."""
    if request.param == "eventfd":
        return eventfd.notify, eventfd.take
    head = bytearray(header_bytes(2))
    notify, take = WakeUps(head, futexes=True).of(1).notify, FutexWaiter(head, 1).take
    # The first wait of a process ends at once, because it may have been notified before its start.
    take()
    return notify, take


def waits(take: Take) -> threading.Thread:
    """Return a thread that waits to be notified, after some time to begin with that."""
    thread = threading.Thread(target=take)
    thread.start()
    thread.join(0.05)
    return thread


def test_notifications_before_a_wait_end_it_once(ends: tuple[Notify, Take]) -> None:
    notify, take = ends
    for _ in range(700):
        notify()
    take()
    thread = waits(take)
    assert thread.is_alive()
    notify()
    thread.join(60)
    assert not thread.is_alive()


def test_a_notification_right_after_a_wait_ends_the_next_one(ends: tuple[Notify, Take]) -> None:
    notify, take = ends
    for _ in range(3):
        notify()
        take()
        notify()
        take()


def test_an_eventfd_with_the_same_descriptor_is_the_same_wake_up(eventfd: WakeUp) -> None:
    other = WakeUp(os.dup(eventfd.notifying))
    other.notify()
    eventfd.take()
    other.close()


def test_closing_an_eventfd_twice_closes_it_once(eventfd: WakeUp) -> None:
    eventfd.close()
    eventfd.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(eventfd.fileno())


@pytest.mark.linux
def test_one_notification_reaches_all_workers_and_another_only_one_group() -> None:
    head = bytearray(header_bytes(40))
    wake_ups = WakeUps(head, futexes=True)
    of_workers = [wake_ups.of(worker) for worker in range(40)]
    waiters = [FutexWaiter(head, worker) for worker in range(40)]
    for waiter in waiters:
        waiter.take()
    threads = [waits(waiter.take) for waiter in waiters]
    assert all(thread.is_alive() for thread in threads)
    of_workers[33].notify()
    threads[33].join(60)
    assert all(thread.is_alive() for thread in threads[:32])
    wake_ups.notify_all()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_without_futexes_a_worker_sleeps_on_a_descriptor_of_its_own() -> None:
    head = bytearray(header_bytes(1))
    wake_up = WakeUps(head, futexes=False).of(0)
    assert not wake_up.has_futex
    (descriptor,) = wake_up.inherited
    wake_up.notify()
    of_worker = WakeUp(os.dup(descriptor))
    of_worker.take()
    of_worker.close()
    wake_up.close()


@pytest.mark.linux
def test_the_changes_wrap_around() -> None:
    head = bytearray(header_bytes(1))
    wake_ups = WakeUps(head, futexes=True)
    wake_up, waiter = wake_ups.of(0), FutexWaiter(head, 0)
    waiter.changes[0] = (1 << 32) - 1
    waiter.take()
    wake_up.notify()
    assert waiter.changes[0] == 0
    waiter.take()


@pytest.mark.linux
def test_a_new_process_of_a_worker_counts_its_messages_from_0() -> None:
    head = bytearray(header_bytes(1))
    wake_ups = WakeUps(head, futexes=True)
    for _ in range(3):
        wake_ups.of(0).notify_of_message()
    assert told(head, 0)[0] == 1
    restarted = wake_ups.of(0)
    assert told(head, 0)[0] == 0
    restarted.notify_of_message()
    FutexWaiter(head, 0).take()
    assert told(head, 0)[0] == 1


class MessagesAndRequests:
    """A main process that sends a message and then requests a step that needs it, after each look of the worker."""

    def __init__(self) -> None:
        self.told = self.number = self.received = self.looks = 0
        worker: Any = SimpleNamespace(open=True, failed=False, task=self)
        self.incoming = Incoming(worker, self, self._receive)

    def due(self) -> Any:
        """Return the requests, as a task does."""
        return [(self._request(self.number), [0])]

    def __getitem__(self, index: int) -> int:
        """Return the number of messages, as shared memory does."""
        return self._request(self.told)

    def _request(self, seen: int) -> int:
        self.looks += 1
        if self.looks < 10:
            self.told += 1
            self.number += 1
        return seen

    def _receive(self) -> None:
        self.received += 1


def test_a_step_is_never_seen_without_the_message_before_it() -> None:
    both = MessagesAndRequests()
    for _ in range(5):
        ((number, _),) = both.incoming.due()
        assert number <= both.received <= both.told


def test_messages_after_the_last_one_that_is_counted_are_not_awaited() -> None:
    received: list[int] = []
    worker: Any = SimpleNamespace(open=True, failed=True, task=None)
    counted = memoryview(bytearray(8)).cast("q")
    incoming = Incoming(worker, counted, lambda: received.append(1))
    for count in (0, 2, 2, 3):
        counted[0] = count
        assert incoming.due() == []
        assert len(received) == count
    worker.open, counted[0] = False, 4
    incoming.due()
    assert len(received) == 3


def test_the_main_process_is_notified_when_enough_rows_are_finished(eventfd: WakeUp) -> None:
    head = bytearray(header_bytes(1))
    spec = StepBufferSpec(4, (), (), 0)
    step_buffer = StepBuffer(spec, bytearray(spec.fields()[1]))
    signals, answers = StepSignals(head), Answers(head, eventfd)
    step_buffer.requested[:] = 5
    for wanted in (0, 1, 3, 4):
        step_buffer.finished[:] = 0
        for finished in range(5):
            step_buffer.finished[:finished] = 5
            signals.expect(wanted)
            answers.notify_if_enough(step_buffer.rendezvous)
            assert signals.notified[0] == (finished >= wanted), (wanted, finished)


def test_only_a_sleeping_main_process_is_notified_by_a_system_call(eventfd: WakeUp) -> None:
    head = SharedMemory(header_bytes(1)).map()
    signals, answers = StepSignals(head), Answers(head, eventfd)
    poll = select.poll()
    poll.register(eventfd.fileno(), select.POLLIN)
    signals.expect(0)
    answers.notify()
    assert not poll.poll(0)
    assert sleep(signals, poll, 60.0) == []
    signals.expect(0)
    thread = threading.Thread(target=answers.notify)
    signals.sleeping[0] = 1
    thread.start()
    thread.join()
    assert poll.poll(0)
