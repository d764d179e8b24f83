"""Table of messages that hosts with a valid key must not send, and the main process's side of a run without sockets.

A :class:`Run` has a placement over a listener that returns the messages that a test puts in. The placement decodes,
checks and counts them as in a run over the network.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from parenv import RemotePlacement
from parenv.memory.layout import COMMIT_DTYPE, RolloutSpec, SlotSpec, leaves_as_data, slot_layout
from parenv.memory.maps import SlotMap, StepBufferMap
from parenv.memory.shared import SharedMemory
from parenv.memory.spaces import describe, leaves
from parenv.memory.status_slot import STATUS_SLOT_BYTES, header_bytes
from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.placement.base import Event, Launch
from parenv.process.wake_up import WakeUps
from parenv.protocol.frames import HEADER_BYTES, Sender, from_frames, to_frames
from parenv.protocol.messages import Commit, Credit, Failure, Layout, Logged, Ready, Reply, Rows, SideData, StepReady
from parenv.remote.host_messages import (
    HOST,
    Answers,
    Chunks,
    Gone,
    Goodbye,
    Heartbeat,
    Join,
    Refuse,
    Requests,
    RowPlan,
    Started,
    own_versions,
)
from parenv.remote.placement import HostsPlacement
from parenv.remote.step_buffers import WorkerRows
from parenv.testing import LedgerEnv

T, SHARE, INFO_BYTES = 8, 2, 1024
OBSERVED, ACTED = LedgerEnv(0).observation_space, LedgerEnv(0).action_space
GOOD, BAD = b"good", b"bad"
"""Connections of the good host, which has worker 0, and of the bad host, which has worker 1."""
WORKER = Sender(1, 0)
READY = Ready([describe(OBSERVED), describe(ACTED)], 1, [], [])
BY_NAME = {"observation_space": OBSERVED, "action_space": ACTED}
STEP_READY = StepReady({name: [[describe(of)], [0] * SHARE] for name, of in BY_NAME.items()}, SHARE, {}, None, {})
COMMIT = Commit(0, {}, [None, {}, None, 0, []], [])
FAILURE = Failure(-1, 0, -1, "step", ["builtins", "ValueError"], "an error", "")


class Listener:
    """Replacement for ``HostListener`` that receives from a queue and records what is sent."""

    address = "tcp://127.0.0.1:1"

    def __init__(self) -> None:
        self.refusals: Counter[str] = Counter()
        self.admission = SimpleNamespace(ended=0)
        self.inbox: deque[tuple[bytes, str, Any]] = deque()
        self.told: list[tuple[bytes, Sender, Any]] = []
        self.ended: list[bytes] = []

    def polled(self) -> Sequence[Any]:
        return ()

    def notice(self, ready: object) -> None:
        pass

    def receive(self) -> Any:
        return self.inbox.popleft() if self.inbox else None

    def send(self, peer: bytes, frames: Any = ()) -> bool:
        self.told.append((peer, *from_frames(frames)))
        return True

    def dismiss(self, peer: bytes, frames: Any) -> None:
        self.send(peer, frames)
        self.ended.append(peer)
        self.inbox = deque(one for one in self.inbox if one[0] != peer)

    def close(self) -> None:
        pass


class Run:
    """Main process of a pool or a vector env with a worker on a good host and a worker on a bad host.

    Args:
        steps: Whether the run is of a vector env, whose workers write to a step buffer.
        keys: Names of the keys of the two hosts.
    """

    def __init__(self, steps: bool = False, keys: tuple[str, str] = ("host0", "host5")) -> None:
        self.keys = dict(zip((GOOD, BAD), keys, strict=True))
        self.listener, self.events = Listener(), list[Event]()
        placing = RemotePlacement(self.listener.address, key="", hosts=())
        self.placement = HostsPlacement(self.listener, placing, None, None)  # type: ignore[arg-type]
        self.memory = SharedMemory()
        self.head_bytes = header_bytes(2)
        self.rows: WorkerRows | None = None
        self._lay_out_rows() if steps else self._lay_out_slots()
        launch = Launch(self.memory.fd, b"job", (), {}, 1)
        self.placement.start(launch, [Sender(0, 0), WORKER])

    def _lay_out_slots(self) -> None:
        spec = SlotSpec((RolloutSpec(T, leaves(OBSERVED), leaves(ACTED)),))
        self.layout = slot_layout(spec, 1, 1)
        self.memory.grow(self.head_bytes + 4 * self.layout.total_bytes)
        self.slots = SlotMap(
            self.memory.map(), spec, self.head_bytes, self.layout.total_bytes, False, (1, 1), credits=2
        )
        self.placement.lay_out(self.slots)

    def _lay_out_rows(self) -> None:
        spec = StepBufferSpec(2 * SHARE, leaves(OBSERVED), leaves(ACTED), INFO_BYTES)
        self.memory.grow(self.head_bytes + spec.fields()[1])
        self.step_buffer = StepBuffer(spec, self.memory.map(), self.head_bytes)
        wake_ups = WakeUps(self.memory.map(), futexes=False)
        self.wake_ups = [self.placement.wake_up(worker, wake_ups) for worker in range(2)]
        self.placement.lay_out_step_buffer(StepBufferMap(self.memory.map(), spec, self.head_bytes, (SHARE, SHARE)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for host in (GOOD, BAD):
            self.listener.inbox.append((host, self.keys[host], to_frames(HOST, Goodbye())))
        with closing(self.memory):
            self.placement.close(0.0)

    def hear(self, message: Any, about: tuple[int, int] = HOST, host: bytes = BAD) -> None:
        """Receive a message from a host, given as a message or as frames."""
        frames = message if isinstance(message, list) else to_frames(Sender(*about), message)
        self.listener.inbox.append((host, self.keys[host], [bytes(frame) for frame in frames]))
        self.events += self.placement.wait(0.0)

    def join(self, host: bytes = BAD, **changed: Any) -> None:
        self.hear(replace(Join(own_versions(), "machine", 1, 1), **changed), host=host)

    def reach(self, stage: str) -> Run:
        """Bring the run to a stage: ``""``, ``"joined"``, ``"started"``, ``"credits"`` or ``"asked"``.

        Before the first stage, only the good host has joined. At ``"credits"``, the bad host's worker has two credits
        for rollouts; at ``"asked"``, it has a request to step.
        """
        self.join(GOOD)
        if stage == "":
            return self
        self.join(BAD)
        if stage == "joined":
            return self
        assert self.placement._scheduler.host_of(WORKER) == BAD
        self.hear(Started(77), WORKER)
        if stage == "credits":
            self.hear(READY, WORKER)
            layout = Layout(self.head_bytes, self.layout.total_bytes, 1, 1, 0, 0, 1, [], [])
            for message in (layout, Credit(0, 2, 0, 0, b""), Credit(1, 3, 0, 0, b"")):
                self.placement.send(WORKER, message)
        elif stage == "asked":
            self.hear(STEP_READY, WORKER)
            observed, acted = (leaves_as_data(leaves(space)) for space in BY_NAME.values())
            self.placement.send(WORKER, Rows(self.head_bytes, 2 * SHARE, observed, acted, INFO_BYTES))
            self.step_buffer.requested[:] = 1
            self.wake_ups[1].notify()
        return self

    def answers(self) -> Answers:
        """Return the answers of an honest host to the requests to its worker."""
        (plan,) = (message for _, _, message in self.listener.told if isinstance(message, RowPlan))
        (ring,) = (message for _, _, message in self.listener.told if isinstance(message, Requests))
        memory = np.zeros(plan.memory_bytes, np.uint8)
        rows = WorkerRows(memory, plan)
        rows.forget()
        rows.write_requests(ring.data)
        there = StepBuffer(self.step_buffer.spec, memory, self.head_bytes)
        there.rewards[SHARE:], there.finished[SHARE:] = 666.0, there.requested[SHARE:]
        ((numbers, data),) = rows.answers(1 << 20)
        return Answers(numbers, bytes(STATUS_SLOT_BYTES), data)

    @property
    def written(self) -> bytes:
        """Contents of the memory that workers write to."""
        return bytes(self.memory.map())

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.placement.traffic().refused)

    def told(self, kind: type, host: bytes = BAD) -> list[Any]:
        return [message for peer, _, message in self.listener.told if peer == host and isinstance(message, kind)]


@dataclass(frozen=True)
class Offence:
    """Messages that no honest host sends, and the expected reaction.

    Args:
        stage: Stage of the run in which they are sent, see :meth:`Run.reach`.
        says: Function of the run that returns the messages, each with the worker that it is about.
        logged: Pattern of the log message.
        reason: Reason under which they are counted.
        count: Number of refused messages.
        ends: Whether the host is disconnected, which ends its worker.
    """

    stage: str
    says: Callable[[Run], list[tuple[Any, tuple[int, int]]]]
    logged: str
    reason: str = "malformed message"
    count: int = 1
    ends: bool = True


def says(*messages: Any, about: tuple[int, int] = WORKER) -> Callable[[Run], list[tuple[Any, tuple[int, int]]]]:
    return lambda run: [(message, about) for message in messages]


def answers(change: Callable[[Answers], Answers]) -> Callable[[Run], list[tuple[Any, tuple[int, int]]]]:
    return lambda run: [(change(run.answers()), WORKER)]


def frames(what: str) -> list[bytes]:
    """Return frames that no honest host sends. Unpickling one of the pickles raises an exception."""
    pickle = b"cbuiltins\neval\n(S'1/0'\ntR."
    chunk = [bytes(frame) for frame in to_frames(Sender(0, 0), Chunks(0, [[0, memoryview(b"x" * 64)]]))]
    header = bytes(to_frames(Sender(*HOST), Goodbye())[0])
    return {
        "nothing": [b"x"],
        "garbage": [b"\x00" * 40, b"garbage"],
        "a pickle": [pickle],
        "a pickle behind a header": [header[:HEADER_BYTES] + pickle],
        "another protocol": [chunk[0][:4] + b"\x00\x63" + chunk[0][6:], *chunk[1:]],
        "an unknown kind": [chunk[0][:6] + b"\x00\xff" + chunk[0][8:], *chunk[1:]],
    }[what]


UNREADABLE = {
    "nothing": "shorter than its header",
    "garbage": "does not begin with parenv's magic number",
    "a pickle": "does not begin with parenv's magic number",
    "a pickle behind a header": "malformed data in a message",
    "another protocol": "has protocol version 99, but this process uses",
    "an unknown kind": "unknown kind of message: 255",
}


def whole_rollout(sequence: int) -> Chunks:
    """Return a complete rollout without episode ends, as an honest host sends it."""
    layout = slot_layout(SlotSpec((RolloutSpec(T, leaves(OBSERVED), leaves(ACTED)),)), 1, 1)
    slot = np.zeros(layout.reserved_bytes, np.uint8)
    (commits,) = (field for field in layout.groups[0] if field.name == ("commits", 0))
    np.ndarray(1, COMMIT_DTYPE, slot, commits.offset)["sequence"] = sequence
    return Chunks(sequence, [[0, memoryview(slot)]])


def part(byte: bytes, nbytes: int, offset: int = 0, sequence: int = 0) -> Chunks:
    return Chunks(sequence, [[offset, memoryview(byte * nbytes)]])


def commit(**changed: Any) -> Callable[[Run], list[tuple[Any, tuple[int, int]]]]:
    return says(whole_rollout(0), replace(COMMIT, **changed))


def with_bytes(good: Answers, offset: int, new: bytes, more: bytes = b"") -> Answers:
    data = bytearray(good.data)
    data[offset : offset + len(new)] = new
    return replace(good, data=memoryview(bytes(data) + more))


def kinds(*numbers: int) -> bytes:
    return np.array(numbers, "<i4").tobytes()


def announced(kind: Any) -> SideData:
    return SideData([[2, kind]], [], [])


def versions(**changed: Any) -> dict[str, Any]:
    return {**own_versions(), **changed}


KINDS_AT, REWARDS_AT, FLAGS_AT = 8 * SHARE, (8 + 4) * SHARE, (8 + 4 + 8) * SHARE
OBJECT = ["value", [], "|O", False]
NO_ARRAYS = "malformed description of extras or carry"
LIST_OF = "must be of length"
JOINS: dict[str, tuple[dict[str, Any], str]] = {
    "python": ({"versions": versions(python="2.7")}, "the host has python 2.7, and the driver has"),
    "cloudpickle": ({"versions": versions(cloudpickle="0.1")}, "the host has cloudpickle 0.1, and"),
    "parenv": ({"versions": versions(parenv="9.9")}, "the host has parenv 9.9, and"),
    "none": ({"versions": None}, "it must report its versions"),
    "no room": ({"capacity": 0}, "a host needs room for at least one worker"),
    "no text": ({"versions": versions(protocol=np.arange(3))}, "the host has protocol unknown, and"),
}
READIES: dict[str, tuple[dict[str, Any], str]] = {
    "extras: pointers": ({"extras": [OBJECT]}, NO_ARRAYS),
    "extras: a structure": ({"extras": [["value", [], "i4,O", False]]}, NO_ARRAYS),
    "extras: twice": ({"extras": [["value", [], "<f4", False]] * 2}, NO_ARRAYS),
    "extras: no text": ({"extras": [[1, [], "<f4", False]]}, NO_ARRAYS),
    "extras: negative": ({"extras": [["value", [-8], "<f4", False]]}, NO_ARRAYS),
    "extras: huge": ({"extras": [["value", [1 << 40, 1 << 40], "<f4", False]]}, NO_ARRAYS),
    "extras: a number": ({"extras": 7}, NO_ARRAYS),
    "carry: pointers": ({"carry": [[[], [], "|O"]]}, NO_ARRAYS),
    "carry: two at one place": ({"carry": [[[], [], "<f4"], [["a"], [], "<f4"]]}, NO_ARRAYS),
    "carry: too deep": ({"carry": [[["deeper"] * 2000, [], "<f4"]]}, NO_ARRAYS),
    "spaces: a number": ({"spaces": 5}, "Ready.spaces must be list, got int"),
    "spaces: one": ({"spaces": READY.spaces[:1]}, f"Ready.spaces {LIST_OF} 2 to 2, got length 1"),
    "spaces: nonsense": ({"spaces": ["box", "box"]}, "malformed description of a space"),
    "no sub-environments": ({"num_envs": 0}, "Ready.num_envs must be from 1 to 1,048,576, got 0"),
    "too many sub-environments": ({"num_envs": 1 << 40}, "Ready.num_envs must be from 1 to 1,048,576"),
}
COMMITS: dict[str, tuple[dict[str, Any], str]] = {
    "report": ({"report": 5}, "Commit.report must be list, got int"),
    "report that nobody asked for": (
        {"report": [8, {}, None, 0, []]},
        "Commit.report must be NoneType, got int",
    ),
    "replaced: a number": ({"replaced": 3}, "Commit.replaced must be list, got int"),
    "replaced: numbers": ({"replaced": [[1, 2, 3, 4]]}, "Commit.replaced must be str, got int"),
    "objects: a number": ({"objects": 1}, "Commit.objects must be dict, got int"),
    "objects: of no leaf": ({"objects": {("observations", 0): []}}, "Commit.objects must be dict of nothing"),
}
FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "kind: a number": ({"kind": 5}, "Failure.kind must be list, got int"),
    "kind: one text": ({"kind": ["ValueError"]}, f"Failure.kind {LIST_OF} 2 to 2, got length 1"),
    "kind: numbers": ({"kind": [1, 2]}, "Failure.kind must be str, got int"),
}
ROLLOUTS: dict[str, tuple[list[Any], str]] = {
    "no credit": ([part(b"\xff", 64, sequence=17)], "worker 1 has no credit 17"),
    "does not fit": ([part(b"\xff", 64, offset=1 << 30)], "within its slot, got 64 bytes at offset 1073741824"),
    "twice": ([whole_rollout(0), COMMIT, COMMIT], "worker 1 has no credit 0"),
    "nothing of it": ([COMMIT], "the rollout of credit 0 .* bytes, got 0"),
    "incomplete": ([part(b"\0", 64), COMMIT], "the rollout of credit 0 .* bytes, got 64"),
    "ends": ([part(b"\xff", 512), COMMIT], "the rollout of credit 0 .* bytes, got"),
    "too many ends": ([part(b"\x7f", 512), COMMIT], "the rollout of credit 0 .* bytes, got"),
    "chunks: no bytes": ([Chunks(0, [[0, 5]])], "Chunks.chunks must be memoryview, got int"),
    "the second rollout first": ([whole_rollout(1), replace(COMMIT, sequence=1)], "commits credit 1 before credit 0"),
    "ready twice": ([READY], "the worker must not send Ready in the state 'running'"),
    "side data": ([SideData([], [], [])], "the worker must not send SideData in the state 'running'"),
    "too much": ([Reply(99, "x" * 5_000_000)], "must have at most 4,194,304 bytes beside arrays .*, got 5,000,0"),
    "log records": ([Logged([], 0)], "a host must not send log records"),
    "of the driver": ([Refuse("you are refused")], "a host must not send Refuse"),
    "an end of no number": ([Gone(77, "0", None, "")], r"Gone.exit_code must be int \| None, got str"),  # type: ignore[arg-type]
}
ANSWERS: dict[str, tuple[Callable[[Answers], Answers], str]] = {
    "a row that is not there": (lambda good: replace(good, rows=[0, SHARE]), "rows must be increasing numbers"),
    "a row before the first": (lambda good: replace(good, rows=[-1, 0]), "rows must be increasing numbers"),
    "a row far away": (lambda good: replace(good, rows=[0, 1 << 70]), "rows must be an integer of at most 64 bits"),
    "the same row twice": (lambda good: replace(good, rows=[1, 1]), "rows must be increasing numbers"),
    "rows in disorder": (lambda good: replace(good, rows=[1, 0]), "rows must be increasing numbers"),
    "more rows than there are": (lambda good: replace(good, rows=[0, 1, 2]), "an answer must have 1 to 2 rows, got 3"),
    "no rows": (lambda good: replace(good, rows=[], data=memoryview(b"")), "an answer must have 1 to 2 rows, got 0"),
    "rows that are no numbers": (lambda good: replace(good, rows=[0, "1"]), "Answers.rows must be int, got str"),
    "rows that are truth values": (
        lambda good: replace(good, rows=[False, True]),
        "Answers.rows must be int, got bool",
    ),
    "rows that are no list": (lambda good: replace(good, rows={"0": 1}), "Answers.rows must be list, got dict"),
    "fewer rows than bytes": (lambda good: replace(good, rows=[0]), "of a kind that the worker has sent, got kind 1"),
    "a byte too few": (lambda good: replace(good, data=good.data[:-1]), "rows must have at least"),
    "a byte too many": (lambda good: with_bytes(good, 0, b"", b"x"), "infos must have 0 bytes, got 1"),
    "no bytes": (lambda good: replace(good, data=memoryview(b"")), "rows must have at least"),
    "an info that is left out": (
        lambda good: with_bytes(good, KINDS_AT, kinds(2, 0)),
        "1 infos must have 1024 bytes, got 0",
    ),
    "another worker's kind of info": (
        lambda good: with_bytes(good, KINDS_AT, kinds(1, 0), bytes(1024)),
        "of a kind that the worker has sent, got kind 1",
    ),
    "a kind of info beyond the last": (
        lambda good: with_bytes(good, KINDS_AT, kinds(-2, 1 << 30)),
        "of a kind that the worker has sent, got kind",
    ),
    "an answer to a request to come": (
        lambda good: with_bytes(good, 0, (1 << 40).to_bytes(8, "little")),
        "answers must belong to requests that were made",
    ),
    "neither true nor false": (lambda good: with_bytes(good, FLAGS_AT, b"\x02"), "boolean fields must be 0 or 1"),
    "a status slot that is too short": (
        lambda good: replace(good, status_slot=b"short"),
        f"Answers.status_slot {LIST_OF} 32 to 32, got length 5",
    ),
    "a status slot that is too long": (
        lambda good: replace(good, status_slot=bytes(64)),
        f"Answers.status_slot {LIST_OF} 32 to 32, got length 64",
    ),
}
NOT_MINE, NO_KIND = "side data must be about sub-environments of worker 1", "a kind of info is malformed"
REMARKS: dict[str, tuple[SideData, str]] = {
    "an info of another worker's row": (SideData([], [[0, {"a": "b"}]], []), NOT_MINE),
    "an info of no row": (SideData([], [[-1, {"a": "b"}]], []), NOT_MINE),
    "an info that is none": (SideData([], [[2, "info"]], []), r"SideData.infos must be dict \| None, got str"),
    "an observation of another worker's row": (SideData([], [], [[1, ["x"]]]), NOT_MINE),
    "an observation of a row that is not there": (SideData([], [], [[4, ["x"]]]), NOT_MINE),
    "observations in no list": (SideData([], [], [[2, "x"]]), r"SideData.observations must be list \| None, got str"),
    "no lists": (SideData(None, None, None), "SideData.kinds must be list, got NoneType"),
    "something left out of nothing": (SideData([], [], [], [[2, "infos['a']"]]), f"SideData.left_out {LIST_OF} 3 to 3"),
    "no pairs": (SideData([], [[2]], []), f"SideData.infos {LIST_OF} 2 to 2"),
    "a row that is no number": (SideData([], [["2", {}]], []), "SideData.infos must be int, got str"),
    "a kind with another worker's number": (SideData([[1, ("dict", (("a", "int"),))]], [], []), NO_KIND),
    "a kind of objects": (announced(("dict", (("a", ("array", "|O", (2,))),))), NO_KIND),
    "a kind that is too large": (announced(("dict", (("a", ("array", "<f8", (129,))),))), NO_KIND),
    "a kind that is endless": (announced(("dict", (("a", ("array", "<f8", (0, 1 << 60, 1 << 60))),))), NO_KIND),
    "a kind with a negative size": (announced(("dict", (("a", ("array", "<f8", (-1,))),))), NO_KIND),
    "a kind of nothing known": (announced(("dict", (("a", "list"),))), NO_KIND),
    "a kind that is no dict": (announced("int"), NO_KIND),
    "a kind with a key that is no text": (announced(("dict", ((1, "int"),))), NO_KIND),
    "a tuple where none can be": (announced(("dict", (("a", ("tuple", ("int",))),))), NO_KIND),
    "a kind that cannot be looked up": (announced(("dict", [["a", "int"]])), NO_KIND),
}
IN_ANOTHERS_NAME = (FAILURE, Gone(1, 0, None, ""), COMMIT, part(b"\xff", 512), Started(1), READY, Reply(1, b"cposix"))

OFFENCES: dict[str, Offence] = {
    **{f"unreadable: {what}": Offence("credits", says(frames(what)), log) for what, log in UNREADABLE.items()},
    **{f"unreadable, not joined: {what}": Offence("", says(frames(what)), log) for what, log in UNREADABLE.items()},
    "not joined": Offence("", says(Started(1), FAILURE, Goodbye()), "has not joined", "has not joined", 3, False),
    "not joined, and long": Offence("", says(Reply(1, "x" * 70_000)), "has not joined", "has not joined", ends=False),
    "speaks for another": Offence(
        "credits", says(*IN_ANOTHERS_NAME, about=(0, 0)), "which it does not have", "old generation", 7, False
    ),
    "speaks for an old generation": Offence(
        "credits", says(*IN_ANOTHERS_NAME, about=(1, 7)), "which it does not have", "old generation", 7, False
    ),
    "answers for others": Offence(
        "asked",
        lambda run: [(run.answers(), about) for about in ((0, 0), (7, 0), (1, 7))],
        "which it does not have",
        "old generation",
        3,
        False,
    ),
    "a heartbeat of no slots": Offence(
        "credits", says(Heartbeat([1], b""), about=HOST), "a heartbeat must have a status slot"
    ),
    **{f"ready: {w}": Offence("started", says(replace(READY, **c)), log) for w, (c, log) in READIES.items()},
    **{f"commit: {w}": Offence("credits", commit(**c), log) for w, (c, log) in COMMITS.items()},
    **{f"failure: {w}": Offence("credits", says(replace(FAILURE, **c)), log) for w, (c, log) in FAILURES.items()},
    **{f"rollout: {w}": Offence("credits", says(*m), log) for w, (m, log) in ROLLOUTS.items()},
    **{f"answers: {w}": Offence("asked", answers(change), log) for w, (change, log) in ANSWERS.items()},
    **{f"side data: {w}": Offence("asked", says(remark), log) for w, (remark, log) in REMARKS.items()},
}
ESCAPE = "\x1b]0;pwned\x07"
