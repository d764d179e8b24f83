"""What every worker is doing, readable at any time: one status slot per worker at the head of the shared memory."""

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
"""What a worker can be doing; :func:`parenv.errors.during` has the words for error messages."""
_DOING_BITS = 8
STATUS_SLOT_BYTES = 32
"""What is used of a status slot wherever the worker is; behind it lies what only this machine counts."""


def header_bytes(num_workers: int) -> int:
    """Bytes before the weights: a cache line for the pool, and one per worker."""
    return aligned(ALIGNMENT * (1 + num_workers), 4096)


def code(doing: str, env_id: int = -1) -> int:
    """What a worker is doing, and in which sub-environment, as the one number that lies in its status slot."""
    return DOING.index(doing) + ((env_id + 1) << _DOING_BITS)


def status_slot(buffer: Any, worker: int) -> memoryview:
    """The status slot of one worker, as bytes."""
    begin = ALIGNMENT * (1 + worker)
    return memoryview(buffer)[begin : begin + STATUS_SLOT_BYTES]


def status_slots(buffer: Any, num_workers: int) -> Any:
    """Those of all workers, int64 ``[num_workers, 4]``: the numbers of :class:`StatusSlot`."""
    return np.ndarray((num_workers, 4), "<i8", buffer, ALIGNMENT, (ALIGNMENT, 8))


class StatusSlot:
    """One worker's status slot.

    Args:
        buffer: the shared memory.
        worker: index of the worker.

    Attributes:
        heartbeat: one int64: counts rows of rollouts and other things begun; with ``cell``, a sign of life.
        said: one int64: messages that the worker has sent; written behind them, before the driver is woken.
        has_infos: one int64: whether there is an info among its last answers on the step buffer.
        cell: one int64 with the :func:`code` of now; loops that cannot afford a call store to it directly.
        spun_ns: one int64: nanoseconds that the worker has looked for work before sleeping.
        closing: one bool, shared by all workers: whether the driver wants everybody to end.
    """

    def __init__(self, buffer: Any, worker: int) -> None:
        # Memoryviews, because loops touch them at every step: a numpy scalar takes four times as long to add one to.
        self.closing = memoryview(buffer)[:1].cast("?")
        mine = status_slot(buffer, worker).cast("q")
        self.cell, self.said, self.has_infos, self.heartbeat = (mine[i : i + 1] for i in range(4))
        behind = ALIGNMENT * (1 + worker) + STATUS_SLOT_BYTES
        self.spun_ns = memoryview(buffer)[behind : behind + 8].cast("q")

    def begin(self, doing: str, env_id: int = -1) -> None:
        """Say what comes now, one of :data:`DOING`."""
        self.cell[0] = code(doing, env_id)
        self.heartbeat[0] += 1

    @property
    def doing(self) -> str:
        """One of :data:`DOING`."""
        number = self.cell[0] & ((1 << _DOING_BITS) - 1)
        return DOING[number] if number < len(DOING) else "something that overwrote shared memory"

    @property
    def env_id(self) -> int:
        """The sub-environment at work, or -1."""
        return (self.cell[0] >> _DOING_BITS) - 1

    @property
    def liveness_token(self) -> tuple[int, int]:
        """What changes with whatever the worker begins."""
        return self.cell[0], self.heartbeat[0]

    def describe(self) -> str:
        """What the worker is doing, in words for an error message."""
        return self.doing if self.env_id < 0 else f"{self.doing} of env_id {self.env_id}"
