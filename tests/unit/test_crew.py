"""Check the order of rollouts, losses and returns of a crew against a model, over workers of this file."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from parenv import RestartPolicy, WorkerOptions
from parenv.crew.crew import Crew, Product
from parenv.crew.events import Back, Committed, Lost
from parenv.crew.open_call import OpenCall
from parenv.crew.restarts import Restarts
from parenv.crew.workers import Workers
from parenv.errors import ProtocolError, RestartLimitError, WorkerError
from parenv.memory.status_slot import StatusSlot, header_bytes
from parenv.placement.base import Ended, Launch, Placement, Received, drained
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Call, Commit, Credit, Layout, Message, Ready, Reply

WORKERS = 3
OPTIONS = WorkerOptions(restart=RestartPolicy(max_restarts=10_000, backoff_s=1e-9, max_backoff_s=1e-9))
workers = st.integers(0, WORKERS - 1)


class Scripted(Placement):
    """Placement whose workers do only what a test makes them do.

    Attributes:
        arrived: Messages and ends that the main process has not received.
        said: Messages to the process of each sender.
        running: Present process of each worker.
        killed: Processes that were killed, and whose end has not been reported.
    """

    def __init__(self) -> None:
        self.arrived: deque[Received | Ended] = deque()
        self.said: dict[Sender, list[Message]] = {}
        self.running: dict[int, Sender] = {}
        self.killed: list[Sender] = []

    def start(self, launch: Launch, workers: Sequence[Sender]) -> None:
        for sender in workers:
            self.running[sender.worker], self.said[sender] = sender, []

    def send(self, to: Sender, message: Message) -> None:
        self.said[to].append(message)

    def wait(self, timeout_s: float) -> list[Received | Ended]:
        return drained(self.arrived)

    def signal(self, worker: Sender, signum: int, alone: bool) -> None:
        if self.running.get(worker.worker) == worker and worker not in self.killed:
            self.killed.append(worker)

    def stack(self, worker: Sender) -> str:
        return ""

    def pid(self, worker: Sender) -> int:
        return 1

    def alive(self) -> int:
        return len(self.running)

    def say(self, worker: int, message: Message) -> None:
        """Have the present process of a worker send a message."""
        self.arrived.append(Received(self.running[worker], message))

    def end(self, sender: Sender) -> None:
        """Have a process end."""
        if sender in self.killed:
            self.killed.remove(sender)
        if self.running.get(sender.worker) == sender:
            del self.running[sender.worker]
        self.arrived.append(Ended(sender, 1, None, signal.SIGKILL, ""))


def ready() -> Ready:
    return Ready([["box"], ["box"]], 1, [], [])


def started(placement: Scripted, hear: Any, options: WorkerOptions = OPTIONS) -> Crew:
    """Return a crew whose workers have started."""
    head = np.zeros(header_bytes(WORKERS), np.uint8)
    slots = [StatusSlot(head, worker) for worker in range(WORKERS)]
    crew = Crew(Workers(placement, slots, [1] * WORKERS), options, lambda worker: Launch(0, b"", (), {}, 1))

    def all_ready() -> None:
        for worker in range(WORKERS):
            placement.say(worker, ready())

    crew.start(all_ready)
    crew.serve(Product(lambda worker: [Layout(0, 0, 1, 1, 0, 0, worker, [], [])], hear))
    return crew


class CrewUnderFire(RuleBasedStateMachine):
    """Workers commit, answer, misbehave, die and start in any order. A model says what must be heard."""

    def __init__(self) -> None:
        super().__init__()
        self.placement, self.heard = Scripted(), list[tuple[Any, ...]]()
        self.crew = started(self.placement, self.hear)
        self.expected: list[tuple[Any, ...]] = []
        self.credits: list[deque[int]] = [deque() for _ in range(WORKERS)]
        """Credits of each worker that its present process has not committed yet."""
        self.told: list[deque[int]] = [deque() for _ in range(WORKERS)]
        """Credits of each worker that were neither heard as committed nor as lost."""
        self.is_back = [True] * WORKERS
        self.dooms = [False] * WORKERS
        """Whether the present process has sent something for which it will be killed, or has ended."""
        self.generation, self.number = [0] * WORKERS, 0
        self.old: list[Sender] = []
        self.calls: list[tuple[OpenCall, set[int]]] = []

    def hear(self, event: Any) -> None:
        match event:
            case Committed(worker, commit):
                assert self.told[worker].popleft() == commit.sequence
                self.heard.append(("committed", worker, commit.sequence))
            case Lost(worker, _, again):
                if not again:
                    self.heard.append(("lost", worker))
                    self.told[worker].clear()
                self.is_back[worker] = False
            case Back(worker, generation):
                assert not self.is_back[worker]
                assert not self.dooms[worker], "it is being killed"
                assert generation > self.generation[worker]
                self.generation[worker], self.is_back[worker] = generation, True

    def runs(self, worker: int) -> bool:
        return worker in self.placement.running and not self.dooms[worker]

    def settle(self) -> None:
        """Listen until every message was heard, and every worker that is due has started."""
        while self.placement.arrived or self.crew.workers._arrived:
            self.crew.listen(0.0)
        while any(worker not in self.placement.running for worker in range(WORKERS)):
            self.crew.listen(0.0)
        for worker in range(WORKERS):
            sender = self.placement.running[worker]
            self.dooms[worker] = sender in self.placement.killed

    @precondition(lambda self: any(self.is_back))
    @rule(worker=workers)
    def give_a_credit(self, worker: int) -> None:
        if self.is_back[worker]:
            self.number += 1
            self.crew.workers.say(worker, Credit(self.number, 0, 0, 0, b""))
            self.told[worker].append(self.number)
            if self.runs(worker):
                self.credits[worker].append(self.number)

    @rule(worker=workers)
    def commit(self, worker: int) -> None:
        if self.runs(worker) and self.is_back[worker] and self.credits[worker]:
            number = self.credits[worker].popleft()
            self.placement.say(worker, Commit(number))
            self.expected.append(("committed", worker, number))

    @rule(worker=workers)
    def commit_out_of_order(self, worker: int) -> None:
        if self.runs(worker) and self.is_back[worker] and len(self.credits[worker]) > 1:
            self.placement.say(worker, Commit(self.credits[worker][1]))
            self.dooms[worker] = True

    @rule(worker=workers)
    def break_the_protocol(self, worker: int) -> None:
        """A worker that starts is killed too, and does not count as back if it is ready before its end."""
        if self.runs(worker):
            self.placement.say(worker, ready() if self.is_back[worker] else Reply(0, None))
            self.dooms[worker] = True
            if not self.is_back[worker]:
                self.settle()
                self.placement.say(worker, ready())

    @rule(worker=workers)
    def die(self, worker: int) -> None:
        if worker in self.placement.running:
            sender = self.placement.running[worker]
            self.old.append(sender)
            self.placement.end(sender)
            self.dooms[worker] = True
            self.credits[worker].clear()
            if self.is_back[worker]:
                self.expected.append(("lost", worker))

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def a_dead_process_speaks(self, data: st.DataObject) -> None:
        sender = data.draw(st.sampled_from(self.old))
        # Its end has been heard, so that its successor has another generation.
        self.settle()
        self.give_a_credit(sender.worker)
        number = min(self.told[sender.worker], default=data.draw(st.integers(0, self.number + 1)))
        self.placement.arrived.append(Received(sender, Commit(number)))

    @rule(worker=workers)
    def the_successor_is_ready(self, worker: int) -> None:
        self.settle()
        if self.runs(worker) and not self.is_back[worker]:
            self.placement.say(worker, ready())
            self.settle()
            assert self.is_back[worker]
            first, *credits = self.placement.said[self.placement.running[worker]]
            assert isinstance(first, Layout)
            assert not any(isinstance(one, Credit) for one in credits)

    @rule()
    def listen(self) -> None:
        self.settle()

    @rule(method=st.sampled_from(["load", "call"]), which=st.sets(workers, min_size=1))
    def call(self, method: str, which: set[int]) -> None:
        self.calls.append((self.crew.calls.begin(method, dict.fromkeys(which, ([0], "close", ()))), which))

    @rule(worker=workers)
    def answer(self, worker: int) -> None:
        self.settle()
        if self.runs(worker) and self.is_back[worker]:
            sender = self.placement.running[worker]
            for message in self.placement.said[sender]:
                if isinstance(message, Call):
                    self.placement.say(worker, Reply(message.sequence, sender.generation))
            self.placement.said[sender] = [m for m in self.placement.said[sender] if not isinstance(m, Call)]
            self.settle()
        for call, which in self.calls:
            if call.is_answered:
                self.check_answers(call, which)
        self.calls = [one for one in self.calls if not one[0].is_answered]

    def check_answers(self, call: OpenCall, which: set[int]) -> None:
        """Calls of lost environments fail, and calls that do not concern them are answered by a successor."""
        failed = bool(call.errors)
        assert not (failed and call.method == "load")
        if failed:
            with pytest.raises((WorkerError, ProtocolError, ExceptionGroup)):
                self.crew.calls.take(call)
        else:
            assert self.crew.calls.take(call).keys() == which

    @invariant()
    def all_is_heard_in_order(self) -> None:
        if not self.placement.arrived and not self.crew.workers._arrived:
            assert self.heard == self.expected

    def teardown(self) -> None:
        """Bring every worker back, and see that no credit is missing or left over."""
        self.settle()
        for sender in list(self.placement.killed):
            self.die(sender.worker)
        self.settle()
        for worker in range(WORKERS):
            self.the_successor_is_ready(worker)
        assert all(self.is_back)
        assert self.heard == self.expected
        assert [list(told) for told in self.told] == [list(credits) for credits in self.credits]
        for worker in range(WORKERS):
            self.answer(worker)
        assert not self.calls
        self.crew.close(0.0)


def test_rollouts_losses_and_returns_come_in_order_whatever_workers_do() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    few = settings(max_examples=150, stateful_step_count=40, derandomize=True, phases=(Phase.generate,))
    run_state_machine_as_test(CrewUnderFire, settings=settings(few, deadline=None, suppress_health_check=checks))


def test_the_first_reason_of_a_kill_explains_the_end() -> None:
    restarts = Restarts(RestartPolicy(), 1)
    restarts.kill(0, TimeoutError("first"))
    restarts.kill(0, ProtocolError("second"))
    assert str(restarts.ended(0, ValueError("SIGKILL")).reason) == "first"
    assert str(restarts.ended(0, ValueError("by itself")).reason) == "by itself"


def test_a_worker_is_away_from_its_kill_until_it_is_back() -> None:
    restarts = Restarts(RestartPolicy(backoff_s=4.0), 2)
    assert not restarts.away
    restarts.kill(1, TimeoutError())
    assert restarts.away == {1}
    assert restarts.replace(restarts.ended(1, ValueError()), 10.0) is None
    assert (restarts.next_s, restarts.begin_due(9.0), restarts.begin_due(10.0)) == (10.0, [], [1])
    lost = restarts.ended(1, ValueError("again"))
    assert lost.again
    assert restarts.replace(lost, 11.0) is None
    assert (restarts.next_s, restarts.away) == (15.0, {1})
    assert restarts.begin_due(15.0) == [1]
    restarts.back(1)
    assert not restarts.away
    assert not restarts.ended(1, ValueError()).again


def test_the_last_death_within_the_window_ends_with_all_reasons() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=2), 1)
    for number in range(2):
        assert restarts.replace(restarts.ended(0, ValueError(number)), 0.0) is None
    error = restarts.replace(restarts.ended(0, ValueError(2)), 0.0, env_ids=[4])
    assert isinstance(error, RestartLimitError)
    assert [str(death) for death in error.deaths] == ["0", "1", "2"]


def test_an_excused_loss_neither_waits_nor_counts() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=1), 1)
    for _ in range(10):
        assert restarts.replace(restarts.ended(0, ValueError()), 3.0, excused=True) is None
        assert restarts.begin_due(3.0) == [0]


@pytest.mark.parametrize("excused", [False, True])
def test_without_restarts_the_reason_itself_is_the_error(excused: bool) -> None:
    restarts = Restarts(None, 1)
    reason = ValueError("ended")
    assert restarts.replace(restarts.ended(0, reason), 0.0, excused) is reason
    assert not restarts.begin_due(1e9)
