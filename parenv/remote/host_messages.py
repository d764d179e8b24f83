"""What a driver and a worker host say to each other beside the messages of workers, which a host passes on as they are.

The header of a message about one worker names that worker; of all others, :data:`HOST`. ``memoryview`` fields are
raw memory: copied into the message by whoever sends them, and read where they have come.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, get_args

import cloudpickle

from parenv.libraries import installed_version
from parenv.memory.status_slot import STATUS_SLOT_BYTES
from parenv.protocol.forms import of, shown, sized
from parenv.protocol.frames import PROTOCOL_VERSION, Sender, register
from parenv.protocol.messages import Message

HOST = Sender(0xFFFFFFFF, 0)
"""Worker and generation in the header of what is about no worker."""
CHUNK_BYTES = 1 << 18
"""Memory crosses in chunks of at most so many bytes, so that what waits to be read is bounded, and signs of life pass
between them."""
MAX_STACK_LENGTH = 1 << 15


def max_head_bytes(max_message_bytes: int) -> int:
    """What the JSON at the head of a message from a host may have: read, it takes forty times as much memory.

    >>> max_head_bytes(1 << 26), max_head_bytes(1 << 16)
    (4194304, 65536)
    """
    return max(max_message_bytes // 16, 1 << 16)


def max_brackets(max_message_bytes: int) -> int:
    """How many lists and dicts the JSON at the head of a message from a host may have: each takes microseconds to read.

    >>> max_brackets(1 << 26), max_brackets(1 << 16)
    (262144, 32768)
    """
    return max(max_message_bytes // 256, 1 << 15)


@dataclass(frozen=True)
class Join:
    """Host, first: here I am.

    Args:
        versions: of what must be the same on both sides, by name.
        name: of the machine.
        pid: of the host's process.
        capacity: how many workers it has room for.
    """

    versions: Any
    name: str
    pid: int
    capacity: int


@dataclass(frozen=True)
class Refuse:
    """Driver: you cannot join.

    Args:
        reason: in words.
    """

    reason: str


@dataclass(frozen=True)
class Welcome:
    """Driver: what every worker gets when it is started.

    Args:
        entry: ``module:function`` that a worker runs.
        job: pickled; for workers only.
        preload: modules to import before the first worker starts.
        environment: variables to set before any import.
        threads: per worker.
        head_bytes: size of the memory before the slots, or before the step buffer.
        max_message_bytes: what a message to the driver may have.
        wake-ups: 1: workers listen at wake-ups and answer on a step buffer, 0: they do not.
        spawn: 1: workers are fresh interpreters, 0: they are forked.
    """

    entry: str
    job: bytes
    preload: Any
    environment: Any
    threads: int
    head_bytes: int
    max_message_bytes: int
    doorbells: int
    spawn: int = 0


@dataclass(frozen=True)
class Start:
    """Driver: start this worker."""


@dataclass(frozen=True)
class Signal:
    """Driver: send this worker a signal.

    Args:
        signum: which.
        alone: 1: to the worker, 0: to all that it has started as well.
    """

    signum: int
    alone: int


@dataclass(frozen=True)
class SlotPlan:
    """Driver: where this worker's rollouts lie in the host's memory, and what of each crosses the network.

    Args:
        offset: of the worker's first slot, in bytes.
        slot_bytes: distance between two.
        count: how many; the rollout of a credit lies in the slot of its sequence modulo this.
        fixed_bytes: the part of a slot that every rollout fills.
        ends: where in a slot a number of episode ends is, and ``[offset, bytes]`` of what there is for each of these;
            several where policies have names.
    """

    offset: int
    slot_bytes: int
    count: int
    fixed_bytes: int
    ends: Any


@dataclass(frozen=True)
class Weights:
    """Driver: a chunk of the policy's weights.

    Args:
        offset: where it belongs in the host's memory, in bytes.
        encoding: ``"exact"``, or ``"bfloat16"`` for float32 numbers of which it has the upper halves.
        data: the chunk.
    """

    offset: int
    encoding: str
    data: memoryview


@dataclass(frozen=True)
class RowPlan:
    """Main process: where a worker's rows of the step buffer are in the host's memory, as ``[offset, bytes per row]``.

    Args:
        share: how many rows.
        memory_bytes: what the memory must have for the whole step buffer.
        requests: the columns that cross with every :class:`Ring`.
        answers: those of which every answered row crosses.
        infos: the one of which a row crosses where there is an info.
    """

    share: int
    memory_bytes: int
    requests: Any
    answers: Any
    infos: Any


@dataclass(frozen=True)
class Ring:
    """Driver: what is requested of this worker, and what to ring at its wake-up.

    Args:
        number: as in :mod:`parenv.process.wake_up`; 0 where a message follows that is about these requests.
        data: the requests of all its rows, column by column.
    """

    number: int
    data: memoryview


@dataclass(frozen=True)
class Goodbye:
    """Driver: all is over; or host: it leaves, with its workers."""


@dataclass(frozen=True)
class Started:
    """Host: this worker runs.

    Args:
        pid: its process id there.
    """

    pid: int


@dataclass(frozen=True)
class Gone:
    """Host: this worker has ended.

    Args:
        pid: its process id there.
        exit_code: or ``None``.
        signal: that ended it, or ``None``.
        refused: why it could not be started at all, or nothing.
    """

    pid: int
    exit_code: Any = field(metadata=of(int | None))
    signal: Any = field(metadata=of(int | None))
    refused: str = field(metadata=of(shown))


@dataclass(frozen=True)
class Chunks:
    """Host: chunks of a rollout of this worker, whose commit follows.

    Args:
        sequence: that of the credit.
        chunks: ``[offset, data]`` of each: where in the slot it belongs, in bytes, and a ``memoryview``.
    """

    sequence: int
    chunks: Any = field(metadata=of([(int, memoryview)]))


@dataclass(frozen=True)
class Heartbeat:
    """Host: what its workers are doing.

    Args:
        workers: indices.
        status_slots: theirs, see :mod:`~parenv.memory.status_slot`, one behind the other.
    """

    workers: Any = field(metadata=of([int]))
    status_slots: bytes


@dataclass(frozen=True)
class Answers:
    """Host: rows that this worker has answered.

    Args:
        rows: counted from the worker's first one, rising.
        status_slot: the worker's, see :mod:`parenv.memory.status_slot`.
        data: these rows, column by column, and the infos of those that have one.
    """

    rows: Any = field(metadata=of([int]))
    status_slot: bytes = field(metadata=of(sized(bytes, STATUS_SLOT_BYTES, STATUS_SLOT_BYTES)))
    data: memoryview


def _stack(value: Any, where: str) -> str:
    return shown(value[:MAX_STACK_LENGTH], where)


@dataclass(frozen=True)
class Stack:
    """Host: what this worker wrote when it was asked for its stack, perhaps nothing."""

    text: str = field(metadata=of(_stack))


Control = Join | Refuse | Welcome | Start | Signal | SlotPlan | Weights | Goodbye
Reports = Started | Gone | Chunks | Heartbeat | Stack
Stepping = RowPlan | Ring | Answers
HostMessage = Control | Reports | Stepping
HOST_KINDS: tuple[type[HostMessage], ...] = get_args(HostMessage)
"""In the order of the numbers that they have in frames."""
AnyMessage = Message | HostMessage

register(HOST_KINDS)


def own_versions() -> dict[str, str]:
    """The versions here."""
    return {
        "protocol": str(PROTOCOL_VERSION),
        "parenv": installed_version("parenv") or "unknown",
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "cloudpickle": ".".join(cloudpickle.__version__.split(".")[:2]),
    }


def disagreement(theirs: Any) -> str:
    """What differs between there and here, in words; nothing if all agrees.

    >>> disagreement(own_versions() | {"python": "2.7"}).startswith("python is 2.7 there and ")
    True
    """
    mine = own_versions()
    if not isinstance(theirs, dict):
        return "it does not say its versions"
    said = {name: theirs.get(name) for name in mine}
    said = {name: version if type(version) is str else "unknown" for name, version in said.items()}
    return "; ".join(f"{name} is {said[name]} there and {mine[name]} here" for name in said if said[name] != mine[name])
