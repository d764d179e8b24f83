"""Messages between a driver and a worker host. A host forwards messages of workers unchanged.

The header names the worker that the message is about, or :data:`HOST`. ``memoryview`` fields are raw memory. The sender
copies them into the message, and the receiver reads them without a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import cloudpickle

from parenv.memory.status_slot import STATUS_SLOT_BYTES
from parenv.protocol.forms import between, of, sized
from parenv.protocol.frames import PROTOCOL_VERSION, Sender, register
from parenv.protocol.messages import Message
from parenv.version import VERSION

HOST = Sender(0xFFFFFFFF, 0)
"""Worker and generation in the header of a message about no worker."""
CHUNK_BYTES = 1 << 18
"""Maximum size of a chunk of memory. It limits the unread bytes, and heartbeats pass between chunks."""


@dataclass(frozen=True)
class Join:
    """Host: first message.

    Args:
        versions: Versions that must be equal on both sides, by name.
        name: Name of the machine.
        pid: Process id of the host.
        capacity: Maximum number of workers.
    """

    versions: Any = field(metadata=of({str: str}))
    name: str
    pid: int
    capacity: int = field(metadata=of(between(1)))


@dataclass(frozen=True)
class Refuse:
    """Driver: the host cannot join, or must leave.

    Args:
        reason: Reason as text.
    """

    reason: str


@dataclass(frozen=True)
class Welcome:
    """Driver: the data that every worker gets when it starts.

    Args:
        entry: ``module:function`` that a worker runs.
        job: Pickled job of the workers. The host does not unpickle it.
        preload: Modules to import before the first worker starts.
        environment: Environment variables to set before any import.
        threads: Number of threads per worker.
        head_bytes: Size of the memory before the slots or the step buffer.
        max_message_bytes: Maximum size of a message to the driver.
        wake_ups: 1: workers have wake-ups and a step buffer, 0: they do not.
        spawn: 1: workers are fresh interpreters, 0: they are forked.
    """

    entry: str
    job: bytes
    preload: Any
    environment: Any
    threads: int
    head_bytes: int
    max_message_bytes: int
    wake_ups: int
    spawn: int = 0


@dataclass(frozen=True)
class Start:
    """Driver: start the worker."""


@dataclass(frozen=True)
class Signal:
    """Driver: send a signal to the worker.

    Args:
        signum: Number of the signal.
        alone: 1: to the worker, 0: to its children as well.
    """

    signum: int
    alone: int


@dataclass(frozen=True)
class SlotPlan:
    """Driver: the slots of the worker in the host's memory, and the parts of them to send.

    Args:
        offset: Offset of the worker's first slot, in bytes.
        slot_bytes: Distance between two slots.
        count: Number of slots. A credit uses the slot of its sequence modulo this number.
        fixed_bytes: Size of the part that every rollout fills.
        ends: For each group of rows, the offset of its number of episode ends, and ``[offset, bytes]`` of each field
            with one entry per episode end.
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
        offset: Offset in the host's memory, in bytes.
        encoding: ``"exact"``, or ``"bfloat16"`` for the upper halves of float32 numbers.
        data: Bytes of the chunk.
    """

    offset: int
    encoding: str
    data: memoryview


@dataclass(frozen=True)
class RowPlan:
    """Driver: the columns of the step buffer for the worker's rows, as ``[offset, bytes per row]``.

    Args:
        share: Number of rows.
        memory_bytes: Size of the memory with the whole step buffer.
        requests: Columns that are sent with every :class:`Requests`.
        answers: Columns that are sent for every answered row.
        infos: Column that is sent for every answered row with an info.
    """

    share: int
    memory_bytes: int
    requests: Any
    answers: Any
    infos: Any


@dataclass(frozen=True)
class Requests:
    """Driver: requests to the worker, which the host then wakes.

    Args:
        data: Requests of all its rows, column by column.
    """

    data: memoryview


@dataclass(frozen=True)
class Goodbye:
    """Driver: the run is over. Host: it leaves with its workers."""


@dataclass(frozen=True)
class Started:
    """Host: the worker runs.

    Args:
        pid: Process id on the host.
    """

    pid: int


@dataclass(frozen=True)
class Gone:
    """Host: the worker has ended.

    Args:
        pid: Process id on the host.
        exit_code: Exit code, or ``None``.
        signal: Number of the signal that ended it, or ``None``.
        refused: Reason if it could not be started.
    """

    pid: int
    exit_code: Any = field(metadata=of(int | None))
    signal: Any = field(metadata=of(int | None))
    refused: str


@dataclass(frozen=True)
class Chunks:
    """Host: chunks of a rollout of the worker. The commit follows.

    Args:
        sequence: Sequence number of the credit.
        chunks: ``[offset, data]`` of each chunk: the offset in the slot in bytes, and a ``memoryview``.
    """

    sequence: int
    chunks: Any = field(metadata=of([(int, memoryview)]))


@dataclass(frozen=True)
class Heartbeat:
    """Host: the state of its workers.

    Args:
        workers: Indices of the workers.
        status_slots: Their status slots in this order, see :mod:`~parenv.memory.status_slot`.
    """

    workers: Any = field(metadata=of([int]))
    status_slots: bytes


@dataclass(frozen=True)
class Answers:
    """Host: rows that the worker has answered.

    Args:
        rows: Row numbers within the worker, in ascending order.
        status_slot: Status slot of the worker, see :mod:`parenv.memory.status_slot`.
        data: The rows, column by column, followed by their infos.
    """

    rows: Any = field(metadata=of([int]))
    status_slot: bytes = field(metadata=of(sized(bytes, STATUS_SLOT_BYTES, STATUS_SLOT_BYTES)))
    data: memoryview


@dataclass(frozen=True)
class Stack:
    """Host: the Python stack of the worker, or an empty text."""

    text: str


Control = Join | Refuse | Welcome | Start | Signal | SlotPlan | Weights | Goodbye
Reports = Started | Gone | Chunks | Heartbeat | Stack
Stepping = RowPlan | Requests | Answers
HostMessage = Control | Reports | Stepping
HOST_KINDS: tuple[type[HostMessage], ...] = get_args(HostMessage)
"""Classes of messages, in the order of their numbers in frames."""
AnyMessage = Message | HostMessage

register(HOST_KINDS)


def own_versions() -> dict[str, str]:
    """Return the versions that must be equal on both sides before pickled data are sent."""
    return {
        "protocol": str(PROTOCOL_VERSION),
        "parenv": VERSION,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "cloudpickle": ".".join(cloudpickle.__version__.split(".")[:2]),
    }


def disagreement(theirs: Mapping[str, str]) -> str:
    """Describe differences between versions of a host and this process. Returns an empty text if there are none.

    >>> disagreement(own_versions() | {"python": "2.7"}).startswith("the host has python 2.7, and the driver has ")
    True
    """
    mine = own_versions()
    said = {name: theirs.get(name, "unknown") for name in mine}
    differing = [name for name in mine if said[name] != mine[name]]
    return "; ".join(f"the host has {name} {said[name]}, and the driver has {mine[name]}" for name in differing)
