"""The main process's side of a run without sockets.

A :class:`Run` has a placement over a listener that returns the messages that a test puts in. The placement decodes and
checks them as in a run over the network.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from parenv.hosts import RemotePlacement
from parenv.memory.layout import COMMIT_DTYPE, RolloutSpec, SlotSpec, leaves_as_data, slot_layout
from parenv.memory.maps import SlotMap, StepBufferMap
from parenv.memory.shared import SharedMemory
from parenv.memory.spaces import describe, leaves
from parenv.memory.status_slot import STATUS_SLOT_BYTES, header_bytes
from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.placement.base import Arrived, Launch
from parenv.protocol.frames import HEADER_BYTES, Sender, from_frames, to_frames
from parenv.protocol.messages import Commit, Credit, Failure, Layout, Ready, Rows, StepReady
from parenv.remote.host_messages import (
    HOST,
    Answers,
    Chunks,
    Goodbye,
    Join,
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
COMMIT = Commit(0)
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
        self.listener, self.events = Listener(), list[Arrived]()
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
        self.wake_ups = [self.placement.wake_up(worker, None) for worker in range(2)]
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


def whole_rollout(sequence: int) -> Chunks:
    """Return a complete rollout without episode ends, as an honest host sends it."""
    layout = slot_layout(SlotSpec((RolloutSpec(T, leaves(OBSERVED), leaves(ACTED)),)), 1, 1)
    slot = np.zeros(layout.reserved_bytes, np.uint8)
    (commits,) = (field for field in layout.groups[0] if field.name == ("commits", 0))
    np.ndarray(1, COMMIT_DTYPE, slot, commits.offset)["sequence"] = sequence
    return Chunks(sequence, [[0, memoryview(slot)]])


def part(byte: bytes, nbytes: int, offset: int = 0, sequence: int = 0) -> Chunks:
    return Chunks(sequence, [[offset, memoryview(byte * nbytes)]])


def with_bytes(good: Answers, offset: int, new: bytes, more: bytes = b"") -> Answers:
    data = bytearray(good.data)
    data[offset : offset + len(new)] = new
    return replace(good, data=memoryview(bytes(data) + more))


def kinds(*numbers: int) -> bytes:
    return np.array(numbers, "<i4").tobytes()


def versions(**changed: Any) -> dict[str, Any]:
    return {**own_versions(), **changed}


KINDS_AT, REWARDS_AT = 8 * SHARE, (8 + 4) * SHARE
