"""Check which worker runs on which host, by examples and with a state machine."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from parenv.protocol.frames import Sender
from parenv.remote.host_scheduler import HostScheduler


def test_the_host_with_the_most_room_is_next() -> None:
    scheduler = HostScheduler()
    scheduler.join(b"small", 1)
    scheduler.join(b"large", 3)
    for worker in range(5):
        scheduler.want(Sender(worker, 0))
    hosts = [host for _, host in scheduler.place()]
    assert (hosts.count(b"small"), hosts.count(b"large")) == (1, 3)
    assert scheduler.is_waiting(Sender(4, 0))
    scheduler.ended(Sender(0, 0))
    assert [worker for worker, _ in scheduler.place()] == [Sender(4, 0)]


def test_a_worker_that_has_ended_gets_no_host() -> None:
    scheduler = HostScheduler()
    scheduler.want(Sender(0, 0))
    scheduler.ended(Sender(0, 0))
    scheduler.join(b"host", 1)
    assert scheduler.place() == []


class SchedulerMachine(RuleBasedStateMachine):
    """State machine of hosts and workers: each worker has a host or waits, and no host exceeds its capacity."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler, self.capacity, self.wanted, self.count = HostScheduler(), dict[bytes, int](), set[Sender](), 0

    @rule(host=st.sampled_from([b"a", b"b", b"c"]), capacity=st.integers(1, 3))
    def join(self, host: bytes, capacity: int) -> None:
        if host not in self.capacity:
            self.capacity[host] = capacity
            self.scheduler.join(host, capacity)

    @rule(host=st.sampled_from([b"a", b"b", b"c"]))
    def leave(self, host: bytes) -> None:
        self.capacity.pop(host, None)
        self.wanted -= set(self.scheduler.leave(host))

    @rule()
    def want(self) -> None:
        worker = Sender(self.count, 0)
        self.count += 1
        self.wanted.add(worker)
        self.scheduler.want(worker)

    @rule(data=st.data())
    def ended(self, data: Any) -> None:
        if self.wanted:
            worker = data.draw(st.sampled_from(sorted(self.wanted)))
            self.wanted.remove(worker)
            self.scheduler.ended(worker)

    @rule()
    def place(self) -> None:
        self.scheduler.place()
        waiting = [worker for worker in self.wanted if self.scheduler.is_waiting(worker)]
        assert len(self.wanted) - len(waiting) == min(len(self.wanted), sum(self.capacity.values())) or not waiting

    @invariant()
    def every_worker_has_a_host_or_waits(self) -> None:
        for worker in self.wanted:
            assert (self.scheduler.host_of(worker) is None) == self.scheduler.is_waiting(worker)
        assert set(self.scheduler._host_of) <= self.wanted
        for host, capacity in self.capacity.items():
            assert len(self.scheduler.workers_of(host)) <= capacity


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_host_could_leave_if_others_have_room_for_its_workers_and_the_waiting_ones() -> None:
    scheduler = HostScheduler()
    scheduler.join(b"a", capacity=2)
    for worker in range(2):
        scheduler.want(Sender(worker, 0))
    scheduler.place()
    assert not scheduler.could_leave(b"a")
    scheduler.join(b"b", capacity=2)
    assert scheduler.could_leave(b"a")
    scheduler.want(Sender(2, 0))
    assert not scheduler.could_leave(b"a")
