"""A host that has joined a vector env as it should, and says what it may not: refused, counted, nothing written."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from sampling import one_in

from parenv import HostLostError, ParallelVectorEnv, WorkerTimeoutError
from parenv.errors import ProtocolError
from parenv.memory.spaces import describe, leaves
from parenv.memory.status_slot import STATUS_SLOT_BYTES
from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Call, Reply, Rows, SideData, StepReady
from parenv.remote.host_messages import (
    HOST,
    Answers,
    Gone,
    Goodbye,
    Join,
    Refuse,
    Ring,
    RowPlan,
    Signal,
    Stack,
    Start,
    Started,
    own_versions,
)
from parenv.remote.net.curve import HostSocket
from parenv.remote.net.host_keys import read_host_keys
from parenv.remote.step_buffer_transfer import WorkerRows
from parenv.transport.waiting import Waiting

OBSERVED, ACTED = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
SHARE = 2
Misbehaviour = Callable[["FakeHost", Sender, Answers], None]


class FakeHost:
    """A host in a thread, whose workers are not there: it answers for them.

    Args:
        hosts: where to join.
        number: which of the keys is its own.
        capacity: how many workers it takes.
        misbehave: called instead of answering a step.
    """

    def __init__(self, hosts: Any, number: int, capacity: int, misbehave: Misbehaviour | None) -> None:
        self._key = read_host_keys(hosts.keys / f"{hosts.names[number]}.key")
        self._address, self._capacity, self._misbehave = hosts.address, capacity, misbehave
        self._plans: dict[Sender, RowPlan] = {}
        self._rows: dict[Sender, tuple[WorkerRows, StepBuffer]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def say(self, message: Any, about: tuple[int, int] = HOST) -> None:
        assert self._socket.send(to_frames(Sender(*about), message))

    def answers(self, sender: Sender, reward: float) -> Answers:
        rows, step_buffer = self._rows[sender]
        mine = slice(sender.worker * SHARE, (sender.worker + 1) * SHARE)
        step_buffer.rewards[mine] = reward
        step_buffer.finished[mine] = step_buffer.requested[mine]
        ((numbers, data),) = rows.answers(1 << 20)
        return Answers(numbers, bytes(STATUS_SLOT_BYTES), data)

    def end(self) -> None:
        self._over.set()
        self._thread.join(120.0)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self._socket = HostSocket(self._address, self._key)
        waiting = Waiting()
        waiting.watch(self._socket)
        self.say(Join(own_versions(), "fake", 1, self._capacity))
        while not self._over.is_set() and self._socket.look() != "lost":
            waiting.wait(0.05)
            while (frames := self._socket.receive()) is not None:
                self._obey(*from_frames(frames))
        self._socket.close(0.0)

    def _obey(self, sender: Sender, message: Any) -> None:
        if isinstance(message, Start):
            self.say(Started(77), sender)
            each = {"observation_space": OBSERVED, "action_space": ACTED}
            described = {name: [[describe(space)], [0] * SHARE] for name, space in each.items()}
            self.say(StepReady(described, SHARE, {}, None, {}), sender)
        elif isinstance(message, RowPlan):
            self._plans[sender] = message
        elif isinstance(message, Rows):
            plan, memory = self._plans[sender], np.zeros(self._plans[sender].memory_bytes, np.uint8)
            rows = WorkerRows(memory, plan)
            rows.forget()
            spec = StepBufferSpec(message.num_envs, leaves(OBSERVED), leaves(ACTED), message.info_bytes)
            self._rows[sender] = rows, StepBuffer(spec, memory, message.offset)
        elif isinstance(message, Ring):
            self._rows[sender][0].write_requests(message.data)
            if message.number and self._misbehave is not None:
                self._misbehave(self, sender, self.answers(sender, 666.0))
            elif message.number:
                self.say(self.answers(sender, 1.0), sender)
        elif isinstance(message, Call):
            self.say(self.answers(sender, 0.0), sender)
            self.say(Reply(message.sequence, []), sender)
        elif isinstance(message, Signal) and message.signum == signal.SIGKILL:
            self.say(Gone(77, None, int(signal.SIGKILL), ""), sender)
        elif isinstance(message, Signal):
            self.say(Stack("stuck"), sender)
        elif isinstance(message, Refuse | Goodbye):
            self._over.set()


@pytest.fixture
def fake(hosts: Any) -> Iterator[Callable[..., None]]:
    made: list[FakeHost] = []

    def make(capacity: int, misbehave: Misbehaviour | None = None) -> None:
        made.append(FakeHost(hosts, len(made), capacity, misbehave))

    try:
        yield make
    finally:
        while made:
            made.pop().end()


def make_envs(hosts: Any, num_workers: int, **more: Any) -> ParallelVectorEnv:
    return ParallelVectorEnv(
        [lambda: None] * (SHARE * num_workers),  # type: ignore[list-item,return-value]
        num_workers=num_workers,
        placement=hosts.placement(),
        **more,
    )


def refused(envs: ParallelVectorEnv) -> Any:
    return envs._session.backend.workers.placement.traffic().refused  # type: ignore[attr-defined]


def answered(envs: ParallelVectorEnv) -> list[bytes]:
    """Everything on the driver's step buffer that workers write."""
    step_buffer = envs._session._step_buffer
    arrays = [
        step_buffer.rewards,
        step_buffer.terminated,
        step_buffer.truncated,
        step_buffer.finished,
        step_buffer.info_kinds,
        step_buffer.infos,
    ]
    return [array.tobytes() for array in (*arrays, *step_buffer.observations)]


def step(envs: ParallelVectorEnv) -> Any:
    return envs.step(np.zeros(envs.num_envs, np.int64))


def with_bytes(answers: Answers, offset: int, new: bytes) -> Answers:
    data = bytearray(answers.data)
    data[offset : offset + len(new)] = new
    return replace(answers, data=memoryview(data))


def kinds(*numbers: int) -> bytes:
    return np.array(numbers, "<i4").tobytes()


KINDS_AT, REWARDS_AT, FLAGS_AT = 8 * SHARE, (8 + 4) * SHARE, (8 + 4 + 8) * SHARE
BAD_ANSWERS: dict[str, Callable[[Answers], Answers]] = {
    "a row that is not there": lambda good: replace(good, rows=[0, SHARE]),
    "a row before the first": lambda good: replace(good, rows=[-1, 0]),
    "a row far away": lambda good: replace(good, rows=[0, 1 << 70]),
    "the same row twice": lambda good: replace(good, rows=[1, 1]),
    "rows in disorder": lambda good: replace(good, rows=[1, 0]),
    "more rows than there are": lambda good: replace(good, rows=[0, 1, 2]),
    "no rows": lambda good: replace(good, rows=[], data=memoryview(b"")),
    "rows that are no numbers": lambda good: replace(good, rows=[0, "1"]),
    "rows that are truth values": lambda good: replace(good, rows=[False, True]),
    "rows that are no list": lambda good: replace(good, rows={"0": 1}),
    "fewer rows than bytes": lambda good: replace(good, rows=[0]),
    "a byte too few": lambda good: replace(good, data=good.data[:-1]),
    "a byte too many": lambda good: replace(good, data=memoryview(bytes(good.data) + b"x")),
    "no bytes": lambda good: replace(good, data=memoryview(b"")),
    "an info that is left out": lambda good: with_bytes(good, KINDS_AT, kinds(2, 0)),
    "another worker's kind of info": lambda good: replace(
        with_bytes(good, KINDS_AT, kinds(1, 0)), data=memoryview(bytes(good.data) + bytes(1024))
    ),
    "a kind of info beyond the last": lambda good: with_bytes(good, KINDS_AT, kinds(-2, 1 << 30)),
    "an answer to a request to come": lambda good: with_bytes(good, 0, (1 << 40).to_bytes(8, "little")),
    "neither true nor false": lambda good: with_bytes(good, FLAGS_AT, b"\x02"),
    "a status slot that is too short": lambda good: replace(good, status_slot=b"short"),
    "a status slot that is too long": lambda good: replace(good, status_slot=bytes(64)),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", one_in(5, BAD_ANSWERS))
@pytest.mark.usefixtures("warnings_are_expected")
def test_answers_that_cannot_be_are_refused_and_nothing_is_written(hosts: Any, fake: Any, case: str) -> None:
    before: list[bytes] = []

    def misbehave(host: FakeHost, sender: Sender, good: Answers) -> None:
        if sender.worker == 1:
            before.extend(answered(envs))
            host.say(BAD_ANSWERS[case](good), sender)

    fake(2, misbehave)
    envs = make_envs(hosts, 2)
    with contextlib.closing(envs):
        envs.reset()
        with pytest.raises(HostLostError, match="it sent what it may not"):
            step(envs)
        assert refused(envs) == {"malformed message": 1}
        assert answered(envs) == before


def announced(kind: Any) -> SideData:
    return SideData([[2, kind]], [], [])


BAD_REMARKS = {
    "an info of another worker's row": SideData([], [[0, {"a": "b"}]], []),
    "an info of no row": SideData([], [[-1, {"a": "b"}]], []),
    "an info that is none": SideData([], [[2, "info"]], []),
    "an observation of another worker's row": SideData([], [], [[1, ["x"]]]),
    "an observation of a row that is not there": SideData([], [], [[4, ["x"]]]),
    "observations in no list": SideData([], [], [[2, "x"]]),
    "no lists": SideData(None, None, None),
    "something left out of nothing": SideData([], [], [], [[2, "infos['a']"]]),
    "no pairs": SideData([], [[2]], []),
    "a row that is no number": SideData([], [["2", {}]], []),
    "a kind with another worker's number": SideData([[1, ("dict", (("a", "int"),))]], [], []),
    "a kind of objects": announced(("dict", (("a", ("array", "|O", (2,))),))),
    "a kind that is too large": announced(("dict", (("a", ("array", "<f8", (129,))),))),
    "a kind that is endless": announced(("dict", (("a", ("array", "<f8", (0, 1 << 60, 1 << 60))),))),
    "a kind with a negative size": announced(("dict", (("a", ("array", "<f8", (-1,))),))),
    "a kind of nothing known": announced(("dict", (("a", "list"),))),
    "a kind that is no dict": announced("int"),
    "a kind with a key that is no text": announced(("dict", ((1, "int"),))),
    "a tuple where none can be": announced(("dict", (("a", ("tuple", ("int",))),))),
    "a kind that cannot be looked up": announced(("dict", [["a", "int"]])),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", one_in(5, BAD_REMARKS))
@pytest.mark.usefixtures("warnings_are_expected")
def test_side_data_that_cannot_be_are_refused(hosts: Any, fake: Any, case: str) -> None:
    def misbehave(host: FakeHost, sender: Sender, good: Answers) -> None:
        if sender.worker == 1:
            host.say(BAD_REMARKS[case], sender)

    fake(2, misbehave)
    envs = make_envs(hosts, 2)
    with contextlib.closing(envs):
        envs.reset()
        with pytest.raises(HostLostError, match="it sent what it may not"):
            step(envs)
        assert refused(envs) == {"malformed message": 1}


@pytest.mark.more
def test_a_reference_to_what_was_never_sent_is_an_error_that_says_so(hosts: Any, fake: Any) -> None:
    def misbehave(host: FakeHost, sender: Sender, good: Answers) -> None:
        unknown = with_bytes(good, KINDS_AT, kinds(5, 0))
        status_slot = np.array([0, 2, 1, 0], "<i8").tobytes()
        host.say(replace(unknown, status_slot=status_slot, data=memoryview(bytes(unknown.data) + bytes(1024))), sender)

    fake(1, misbehave)
    envs = make_envs(hosts, 1)
    with contextlib.closing(envs):
        envs.reset()
        with pytest.raises(ProtocolError, match="a kind of info that it has not sent: 5"):
            step(envs)


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_messages_that_a_host_counts_and_never_sends_are_awaited_no_longer_than_a_step(hosts: Any, fake: Any) -> None:
    def misbehave(host: FakeHost, sender: Sender, good: Answers) -> None:
        host.say(replace(good, status_slot=np.array([0, 1 << 40, 0, 0], "<i8").tobytes()), sender)

    fake(1, misbehave)
    envs = make_envs(hosts, 1, step_timeout_s=1.0)
    with contextlib.closing(envs):
        envs.reset()
        with pytest.raises(WorkerTimeoutError, match=r"did not answer within step_timeout_s=1 s .*\s+stuck$"):
            step(envs)


@pytest.mark.more
def test_answers_in_another_workers_name_are_dropped_and_counted(hosts: Any, fake: Any) -> None:
    def misbehave(host: FakeHost, sender: Sender, good: Answers) -> None:
        host.say(good, Sender(1 - sender.worker, 0))
        host.say(good, Sender(7, 0))
        host.say(good, sender)

    fake(1, misbehave)
    fake(1)
    envs = make_envs(hosts, 2)
    with contextlib.closing(envs):
        envs.reset()
        assert sorted(step(envs)[1].tolist()) == [1.0, 1.0, 666.0, 666.0]
        assert refused(envs) == {"old generation": 2}


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_answers_of_a_generation_that_is_gone_are_dropped_and_counted(hosts: Any, fake: Any) -> None:
    def misbehave(host: FakeHost, sender: Sender, good: Answers) -> None:
        if sender.generation == 0:
            host.say(Gone(77, 3, None, ""), sender)
            host.say(good, sender)
        else:
            host.say(good, sender)
            host.say(with_bytes(good, REWARDS_AT, np.array([7.0, 7.0]).tobytes()), Sender(0, 0))

    fake(1, misbehave)
    envs = make_envs(hosts, 1, on_worker_death="restart")
    with contextlib.closing(envs):
        envs.reset()
        _, rewards, _, truncated, infos = step(envs)
        assert rewards.tolist() == [0.0, 0.0]
        assert truncated.all()
        assert infos["worker_restarted"].all()
        assert step(envs)[1].tolist() == [666.0, 666.0]
        deadline = time.monotonic() + 120.0
        while refused(envs) != {"old generation": 2}:
            assert time.monotonic() < deadline
            envs._session.backend.listen(0.1)
        assert envs._session._step_buffer.rewards.tolist() == [666.0, 666.0]
