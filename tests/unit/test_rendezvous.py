"""Check that the last of several processes that finish something notifies the main process, in every rendezvous."""

from __future__ import annotations

import itertools
import select
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytest

from parenv.memory import rendezvous
from parenv.memory.pool_signals import LoadRequests, RoundSignals
from parenv.memory.rendezvous import Rendezvous
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import header_bytes
from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.memory.step_signals import StepSignals
from parenv.platform import system
from parenv.platform.futex import AVAILABLE
from parenv.process.wake_up import WakeUp, WakeUps, sleep

WORKERS = 3
LOST_S = 30.0
pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("for_all", [False, True])
def test_only_the_last_of_all_notifies(for_all: bool, order: tuple[int, ...]) -> None:
    due, done = np.zeros(1 if for_all else 3, np.int64), np.zeros(3, np.int64)
    places = Rendezvous(due, done)
    for number in range(1, 4):
        due[:] = number
        for finished, place in enumerate(order, 1):
            places.finish(place, number)
            assert places.is_enough([3]) == (finished == 3)
            assert [places.has(count) for count in range(5)] == [count <= finished for count in range(5)]


def test_a_number_that_is_not_due_any_more_does_not_count() -> None:
    due, done = np.full(2, 7), np.zeros(2, np.int64)
    places = Rendezvous(due, done)
    places.finish(slice(0, 2), 6)
    assert not places.has(1)
    places.finish(np.array([1]), [7])
    assert places.has(1)
    assert not places.has(2)


def test_a_process_looks_at_the_other_numbers_and_at_the_wanted_count_after_its_full_fence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    due, done, wanted = np.full(2, 1), np.zeros(2, np.int64), [2]
    places = Rendezvous(due, done)
    places.finish(0, 1)

    def another_process_writes() -> None:
        assert done[0] == 1
        done[1] = 1

    monkeypatch.setattr(rendezvous, "full_fence", another_process_writes)
    assert places.is_enough(wanted)
    done[1] = 0
    monkeypatch.setattr(rendezvous, "full_fence", lambda: wanted.__setitem__(0, 1))
    assert places.is_enough(wanted)


WORKER = """
import sys
import numpy as np
from parenv.memory.pool_signals import LoadRequests, RoundSignals
from parenv.memory.shared import SharedMemory
from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.memory.step_signals import told
from parenv.process.spinning import Spinner, Spinning
from parenv.process.wake_up import Answers, FutexWaiter, WakeUp

kind, memory, notifying, own, worker, offset, pool_offset, workers, spins = sys.argv[1], *map(int, sys.argv[2:])
head = SharedMemory(fd=memory).map()
pool_head = memoryview(head)[pool_offset:]
step_buffer = StepBuffer(StepBufferSpec(workers, (), (), 0), head, offset)
waiter, wake_up = FutexWaiter(head, worker) if own < 0 else WakeUp(own), WakeUp(notifying)
if spins:
    waiter.spinner = Spinner(Spinning(20e-6, float("inf")), waiter.changes, memoryview(bytearray(8)).cast("q"))
answers, loads, rounds = Answers(head, wake_up), LoadRequests(pool_head, workers), RoundSignals(pool_head)
requested, finished, rewards = step_buffer.requested, step_buffer.finished, step_buffer.rewards


def step():
    number = requested[worker]
    if number != finished[worker]:
        rewards[worker] = number
        step_buffer.rendezvous.finish(worker, number)
        answers.notify_if_enough(step_buffer.rendezvous)


def load():
    if (number := loads.asked(worker)) is not None:
        rewards[worker], _ = loads.wanted()
        if loads.answer(worker, number):
            wake_up.notify()


def commit():
    number = requested[worker]
    if number != rewards[worker]:
        rewards[worker] = number
        if rounds.must_notify(worker, int(number) - 1):
            wake_up.notify()


serve = {"steps": step, "loads": load, "rounds": commit}[kind]
messages = told(head, worker)
print("waiting", flush=True)
while not messages[0]:
    waiter.take()
    serve()
"""


class Run:
    """Workers that finish something in each round, and a main process that sleeps until all have.

    Args:
        kind: ``"steps"``, ``"loads"`` or ``"rounds"``: the rendezvous of a vector env, or one of the two of a pool.
        spins: Whether workers poll before they sleep.
        cores: Cores of the workers.
    """

    def __init__(self, kind: str, spins: bool, cores: set[int]) -> None:
        spec, offset = StepBufferSpec(WORKERS, (), (), 0), header_bytes(WORKERS)
        pool_offset = offset + spec.fields()[1]
        self.memory = SharedMemory(pool_offset + header_bytes(WORKERS))
        head = self.memory.map()
        pool_head = memoryview(head)[pool_offset:]
        self.step_buffer, self._kind = StepBuffer(spec, head, offset), kind
        self.wake_ups, self.signals, self.wake_up = WakeUps(head, AVAILABLE), StepSignals(head), WakeUp()
        self._loads, self._rounds = LoadRequests(pool_head, WORKERS), RoundSignals(pool_head)
        if kind == "rounds":
            self._rounds.open(WORKERS)
        self.poll = select.poll()
        self.poll.register(self.wake_up.fileno(), select.POLLIN)
        self.of_workers = [self.wake_ups.of(worker) for worker in range(WORKERS)]
        self.sleeps, self._arguments, self._cores = 0, (offset, pool_offset, WORKERS, int(spins)), cores
        self.processes = [self.start(worker) for worker in range(WORKERS)]

    def start(self, worker: int) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it is ready."""
        inherited = self.of_workers[worker].inherited
        descriptors = (self.memory.fd, self.wake_up.notifying, *inherited)
        arguments = (self._kind, *descriptors[:2], *(inherited or (-1,)), worker, *self._arguments)
        started = subprocess.Popen(
            [sys.executable, "-c", WORKER, *map(str, arguments)],
            pass_fds=descriptors,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: system.pin(self._cores),
        )
        assert started.stdout is not None
        assert started.stdout.readline() == b"waiting\n"
        return started

    def round(self, number: int) -> None:
        """Request something from every worker and wait until all have finished."""
        if self._kind == "steps":
            self.step_buffer.requested[:] = number
            self.wait(lambda: self.signals.expect(WORKERS) or self.step_buffer.rendezvous.has(WORKERS))
        elif self._kind == "loads":
            self._loads.ask(number, 0)
            self.wait(self._loads.all_have)
        else:
            self._rounds.begin(number - 1)
            self.step_buffer.requested[:] = number
            self.wait(self._rounds.are_due)
        assert (self.step_buffer.rewards == number).all()

    def wait(self, is_over: Callable[[], Any]) -> None:
        """Notify the workers, and sleep until a condition holds."""
        self.wake_ups.notify_all()
        for wake_up in self.of_workers:
            if not wake_up.has_futex:
                wake_up.notify()
        while not is_over():
            if self._kind == "steps":
                ready = sleep(self.signals, self.poll, LOST_S)
                assert ready or self.signals.notified[0], "a notification is lost"
            else:
                ready = self.poll.poll(LOST_S * 1000)
                assert ready, "a notification is lost"
            self.sleeps += 1
            if ready:
                self.wake_up.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *raised: object) -> None:
        for wake_up, process in zip(self.of_workers, self.processes, strict=True):
            if kind is None:
                wake_up.notify_of_message()
                assert process.wait(60) == 0
            process.kill()
            process.communicate()
            wake_up.close()
        self.wake_up.close()
        self.memory.close()


ROUNDS = [
    2_000,
    pytest.param(300_000, marks=[pytest.mark.more, pytest.mark.timeout(1_200)]),
    pytest.param(25_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(20_000)]),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("on_one_core", [False, True])
@pytest.mark.parametrize("spins", [False, True])
@pytest.mark.parametrize("kind", ["steps", "loads", "rounds"])
def test_no_notification_is_lost(kind: str, spins: bool, on_one_core: bool, rounds: int) -> None:
    if (spins or on_one_core) and not AVAILABLE:
        pytest.skip("only workers with futexes poll, and are on one core")
    everywhere = set(system.usable_core_numbers())
    # Use the last core. On a core whose processes notified each other continuously, Linux 6.18 starved kernel threads,
    # such as those of the network, for two minutes.
    cores = {max(everywhere)} if on_one_core else everywhere
    system.pin(cores)
    try:
        with Run(kind, spins, cores) as run:
            for number in range(1, rounds + 1):
                run.round(number)
            # The last two workers of a round may both notify, but not all workers of every round.
            assert run.sleeps < 2 * rounds
    finally:
        system.pin(everywhere)


@pytest.mark.parametrize("kind", ["steps", "loads", "rounds"])
def test_rounds_continue_when_a_worker_is_killed_and_replaced(kind: str) -> None:
    with Run(kind, spins=False, cores=set(system.usable_core_numbers())) as run:
        number = 0
        for victim in np.random.default_rng(0).integers(0, WORKERS, 5).tolist():
            for _ in range(50):
                number += 1
                run.round(number)
            run.processes[victim].kill()
            run.processes[victim].communicate()
            run.of_workers[victim].close()
            run.of_workers[victim] = run.wake_ups.of(victim)
            run.processes[victim] = run.start(victim)
