"""Check that the numbers of wake-ups add up until they are taken, and that no notification is lost."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Self

import numpy as np
import pytest

from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import header_bytes
from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.memory.step_signals import StepSignals
from parenv.process.wake_up import (
    ALL,
    MESSAGE,
    Answers,
    FutexWaiter,
    FutexWakeUp,
    FutexWakeUps,
    WakeUp,
    counts_of,
    sleep,
)

Notify, Take = Callable[[int], object], Callable[[], int]
KINDS = ("eventfd", "futex")
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def eventfd() -> Iterator[WakeUp]:
    made = WakeUp()
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def ends(request: pytest.FixtureRequest, eventfd: WakeUp) -> tuple[Notify, Take]:
    """Return the function that notifies a worker and the function with which the worker takes the sum."""
    if request.param == "eventfd":
        return eventfd.notify, eventfd.take
    head = bytearray(header_bytes(2))
    return FutexWakeUp(FutexWakeUps(head), 1).notify, FutexWaiter(head, 1, 0).take


def test_numbers_add_up_and_are_taken_once(ends: tuple[Notify, Take]) -> None:
    notify, take = ends
    for value in (3, ALL, 2, MESSAGE, MESSAGE):
        notify(value)
    assert counts_of(take()) == (2, 1, 5)
    notify(4)
    assert counts_of(take()) == (0, 0, 4)


def test_a_worker_without_a_number_waits_for_the_next_one(ends: tuple[Notify, Take]) -> None:
    (notify, take), taken = ends, list[int]()
    thread = threading.Thread(target=lambda: taken.append(take()))
    thread.start()
    notify(7)
    thread.join(60)
    assert taken == [7]


def test_many_numbers_are_all_taken(ends: tuple[Notify, Take]) -> None:
    notify, take = ends
    for _ in range(700):
        notify(1)
    assert take() == 700


def test_an_eventfd_with_the_same_descriptor_has_the_same_sum(eventfd: WakeUp) -> None:
    other = WakeUp(os.dup(eventfd.fileno()))
    other.notify(5)
    assert eventfd.take() == 5
    other.close()


def test_closing_an_eventfd_twice_closes_it_once(eventfd: WakeUp) -> None:
    eventfd.close()
    eventfd.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(eventfd.fileno())


def test_one_round_reaches_every_worker_in_addition_to_its_own_numbers() -> None:
    head = bytearray(header_bytes(40))
    shared = FutexWakeUps(head)
    waiters = [FutexWaiter(head, worker, 0) for worker in range(40)]
    wake_ups = [FutexWakeUp(shared, worker) for worker in range(40)]
    wake_ups[33].notify(MESSAGE)
    shared.notify_all()
    for worker, waiter in enumerate(waiters):
        assert counts_of(waiter.take()) == (int(worker == 33), 1, 0)


def test_a_new_process_of_a_worker_takes_no_earlier_wake_ups() -> None:
    head = bytearray(header_bytes(1))
    shared = FutexWakeUps(head)
    FutexWakeUp(shared, 0).notify(3 * MESSAGE)
    shared.notify_all()
    restarted = FutexWakeUp(shared, 0)
    restarted.notify(MESSAGE)
    waiter = FutexWaiter(head, 0, restarted.sum_before)
    assert counts_of(waiter.take()) == (1, 0, 0)
    shared.notify_all()
    assert counts_of(waiter.take()) == (0, 1, 0)


def test_sums_and_rounds_wrap_around() -> None:
    head = bytearray(header_bytes(1))
    shared = FutexWakeUps(head)
    shared.signals.rounds[0] = shared.futex_of(0).number[0] = (1 << 32) - 1
    shared.signals.request_sum(0)[0] = (1 << 64) - 2
    wake_up = FutexWakeUp(shared, 0)
    waiter = FutexWaiter(head, 0, wake_up.sum_before)
    wake_up.notify(5)
    shared.notify_all()
    assert counts_of(waiter.take()) == (0, 1, 5)


class ReadDuringRequests:
    """Numbers that the main process changes after each read: it sends a message, and then requests a step of all."""

    def __init__(self, numbers: memoryview, request: Callable[[], object]) -> None:
        self._numbers, self._request = numbers, request

    def __getitem__(self, index: int) -> int:
        number = int(self._numbers[index])
        self._request()
        return number


def test_a_step_is_never_seen_without_the_message_before_it() -> None:
    head = SharedMemory(header_bytes(1)).map()
    wake_ups = FutexWakeUps(head)
    wake_up, waiter = FutexWakeUp(wake_ups, 0), FutexWaiter(head, 0, 0)

    def request() -> None:
        wake_up.notify(MESSAGE)
        wake_ups.notify_all()

    waiter._sum = ReadDuringRequests(waiter._sum, request)  # type: ignore[assignment]
    waiter._rounds = ReadDuringRequests(waiter._rounds, request)  # type: ignore[assignment]
    seen = [counts_of(waiter.take()) for _ in range(3)]
    messages, steps = np.cumsum([one.messages for one in seen]), np.cumsum([one.all_rows for one in seen])
    assert (steps <= messages).all()


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
            answers.notify_if_enough(step_buffer)
            assert signals.notified[0] == (finished >= wanted), (wanted, finished)


def test_only_a_sleeping_main_process_is_notified_by_a_system_call(eventfd: WakeUp) -> None:
    signals_head = bytearray(header_bytes(1))
    signals, answers = StepSignals(signals_head), Answers(signals_head, eventfd)
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


WORKER = """
import sys
import numpy as np
from parenv.memory.order import fence
from parenv.memory.shared import SharedMemory
from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.process.spinning import Spinner, Spinning
from parenv.process.wake_up import Answers, FutexWaiter, WakeUp, counts_of

memory, eventfd, worker, offset, workers, before, spins = map(int, sys.argv[1:])
head = SharedMemory(fd=memory).map()
step_buffer = StepBuffer(StepBufferSpec(workers, (), (), 0), head, offset)
waiter, answers = FutexWaiter(head, worker, before), Answers(head, WakeUp(eventfd))
if spins:
    waiter.spinner = Spinner(Spinning(20e-6, float("inf")), waiter.changes, memoryview(bytearray(8)).cast("q"))
requested, finished, rewards = step_buffer.requested, step_buffer.finished, step_buffer.rewards
print("waiting", flush=True)
while True:
    messages, rounds, _ = counts_of(waiter.take())
    if messages:
        break
    assert rounds == 1, rounds
    rewards[worker] = requested[worker]
    fence()
    finished[worker] = requested[worker]
    answers.notify_if_enough(step_buffer)
"""


class Run:
    """Workers that finish a row in each round, and a main process that waits for all rows."""

    def __init__(self, workers: int, spins: bool, cores: set[int]) -> None:
        spec, offset = StepBufferSpec(workers, (), (), 0), header_bytes(workers)
        self.memory = SharedMemory(offset + spec.fields()[1])
        head = self.memory.map()
        self.step_buffer = StepBuffer(spec, head, offset)
        self.shared, self.signals, self.eventfd = FutexWakeUps(head), StepSignals(head), WakeUp()
        self.poll = select.poll()
        self.poll.register(self.eventfd.fileno(), select.POLLIN)
        self.wake_ups = [FutexWakeUp(self.shared, worker) for worker in range(workers)]
        self.sleeps, self._arguments = 0, (offset, workers, 0, int(spins))
        self._cores = cores
        self.processes = [self.start(worker) for worker in range(workers)]

    def start(self, worker: int) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it is ready."""
        descriptors = (self.memory.fd, self.eventfd.fileno())
        offset, workers, _, spins = self._arguments
        before = self.wake_ups[worker].sum_before
        arguments = (*descriptors, worker, offset, workers, before, spins)
        started = subprocess.Popen(
            [sys.executable, "-c", WORKER, *map(str, arguments)],
            pass_fds=descriptors,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, self._cores),
        )
        # The worker prints that it is ready: a late notification of another worker could be mistaken for its own.
        assert started.stdout is not None
        assert started.stdout.readline() == b"waiting\n"
        return started

    def round(self, number: int) -> None:
        """Request a row from every worker and wait until all rows are finished."""
        self.step_buffer.requested[:] = number
        self.shared.notify_all()
        self.wait()
        assert (self.step_buffer.rewards == number).all()

    def wait(self) -> None:
        """Wait until all rows are finished."""
        rows = len(self.step_buffer.finished)
        while self.signals.expect(rows) or not self.step_buffer.has_finished(rows):
            ready = sleep(self.signals, self.poll, 30.0)
            assert ready or self.signals.notified[0], "a notification is lost"
            self.sleeps += 1
            if ready:
                self.eventfd.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *raised: object) -> None:
        for wake_up, process in zip(self.wake_ups, self.processes, strict=True):
            if kind is None:
                wake_up.notify(MESSAGE)
                assert process.wait(60) == 0
            process.kill()
            process.communicate()
        self.eventfd.close()
        self.memory.close()


ROUNDS = [
    2_000,
    pytest.param(300_000, marks=pytest.mark.more),
    pytest.param(25_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(20_000)]),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("on_one_core", [False, True])
@pytest.mark.parametrize("spins", [False, True])
def test_no_wake_up_is_lost(spins: bool, on_one_core: bool, rounds: int) -> None:
    everywhere = os.sched_getaffinity(0)
    # Use the last core. On a core whose processes notified each other continuously, Linux 6.18 starved kernel threads,
    # such as those of the network, for two minutes.
    cores = {max(everywhere)} if on_one_core else everywhere
    os.sched_setaffinity(0, cores)
    try:
        with Run(workers=3, spins=spins, cores=cores) as run:
            for number in range(1, rounds + 1):
                run.round(number)
            # The last two workers of a round may both notify, but not all workers of every round.
            assert run.sleeps < 2 * rounds
    finally:
        os.sched_setaffinity(0, everywhere)


def test_rounds_continue_when_a_worker_is_killed_and_replaced() -> None:
    with Run(workers=3, spins=False, cores=os.sched_getaffinity(0)) as run:
        number = 0
        for victim in np.random.default_rng(0).integers(0, 3, 5).tolist():
            for _ in range(50):
                number += 1
                run.round(number)
            run.processes[victim].kill()
            run.processes[victim].communicate()
            run.wake_ups[victim] = FutexWakeUp(run.shared, victim)
            run.processes[victim] = run.start(victim)
