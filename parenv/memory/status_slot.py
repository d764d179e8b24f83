"""Status slots: the current activity of each worker, at the head of the shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenv.memory.layout import ALIGNMENT, aligned

WAITING_FOR_A_HOST = "waiting for a host"
DOING = (
    "starting",
    "waiting",
    "setup_fn",
    "making the environment",
    "reset",
    "step",
    "act",
    "postprocess",
    "loss_fn",
    "call",
    "evaluate",
    "loading the policy",
    "closing",
    "commit",
    WAITING_FOR_A_HOST,
    "measuring a step",
    "learn",
    "fitness",
)
"""Activities of workers. :func:`parenv.errors.during` has the words for error messages."""
_DOING_BITS = 8
STATUS_SLOT_BYTES = 32
"""Bytes of a status slot that hosts transfer too. The bytes after them are for this machine only."""
ANY_INFOS, SPOKE = 50, 51


def header_bytes(num_workers: int) -> int:
    """Return the number of bytes before the weights: a cache line for the pool, and one per worker."""
    return aligned(ALIGNMENT * (1 + num_workers), 4096)


def code(doing: str, env_id: int = -1) -> int:
    """Encode an activity in a sub-environment as one number."""
    return DOING.index(doing) + ((env_id + 1) << _DOING_BITS)


def status_slot(buffer: Any, worker: int) -> memoryview:
    """Return the status slot of one worker, as bytes."""
    begin = ALIGNMENT * (1 + worker)
    return memoryview(buffer)[begin : begin + STATUS_SLOT_BYTES]


def status_slots(buffer: Any, num_workers: int) -> Any:
    """Return the numbers of all status slots, int64 ``[num_workers, 4]``, see :class:`StatusSlot`."""
    return np.ndarray((num_workers, 4), "<i8", buffer, ALIGNMENT, (ALIGNMENT, 8))


def take_status_slot(buffer: Any, worker: int, status: bytes) -> None:
    """Write the status slot of a worker on a host, as the host sent it."""
    status_slot(buffer, worker)[:] = status
    slot = StatusSlot(buffer, worker)
    # A host cannot set these flags, without which the main process does not look at the counters of the slot.
    # A worker on this machine may set the flag at any time, so it must not be written with what was read before.
    if slot.has_infos[0]:
        slot.any_infos[0] = 1
    slot.spoke[0] = 1


class StatusSlot:
    """The status slot of one worker.

    Args:
        buffer: Shared memory.
        worker: Index of the worker.

    Attributes:
        heartbeat: One int64: number of rows and other activities begun. With ``cell`` it shows that the worker lives.
        said: One int64: number of messages that the worker has sent. It is written after a message and before the main
            process is notified.
        has_infos: One int64: whether the last answers in the step buffer contain an info.
        cell: One int64: :func:`code` of the current activity. Hot loops write it directly.
        spun_ns: One int64: nanoseconds that the worker has spun before it slept.
        closing: One bool, shared by all workers: whether all workers must end.
        any_infos: One uint8, shared by all workers: whether there was an info since the main process cleared it.
        spoke: One uint8, shared by all workers: whether there was a message since the main process cleared it.
    """

    def __init__(self, buffer: Any, worker: int) -> None:
        # Loops use these memoryviews at every step. Adding to a numpy scalar takes four times as long.
        self.closing = memoryview(buffer)[:1].cast("?")
        self.any_infos, self.spoke = (memoryview(buffer)[at : at + 1] for at in (ANY_INFOS, SPOKE))
        mine = status_slot(buffer, worker).cast("q")
        self.cell, self.said, self.has_infos, self.heartbeat = (mine[i : i + 1] for i in range(4))
        behind = ALIGNMENT * (1 + worker) + STATUS_SLOT_BYTES
        self.spun_ns = memoryview(buffer)[behind : behind + 8].cast("q")

    def begin(self, doing: str, env_id: int = -1) -> None:
        """Set the current activity, one of :data:`DOING`."""
        self.cell[0] = code(doing, env_id)
        # A slot has one writer at a time, so the increment needs no lock.
        self.heartbeat[0] += 1

    @property
    def doing(self) -> str:
        """Return the current activity, one of :data:`DOING`."""
        number = self.cell[0] & ((1 << _DOING_BITS) - 1)
        return DOING[number] if number < len(DOING) else "an unknown activity, which overwrote shared memory"

    @property
    def env_id(self) -> int:
        """Return the env_id of the current activity, or -1."""
        return (self.cell[0] >> _DOING_BITS) - 1

    @property
    def liveness_token(self) -> tuple[int, int]:
        """Return numbers that change with every activity that the worker begins."""
        return self.cell[0], self.heartbeat[0]

    def describe(self) -> str:
        """Describe the current activity for an error message."""
        return self.doing if self.env_id < 0 else f"{self.doing} of env_id {self.env_id}"
