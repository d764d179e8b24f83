"""Where things lie in the driver's memory, for placements whose workers have memory of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parenv.memory.board import BoardSpec
from parenv.memory.layout import RolloutSpec


@dataclass(frozen=True)
class SlotMap:
    """Where the rollouts of every worker lie in the pool's memory.

    Args:
        memory: the pool's, all of it.
        spec: what a slot holds.
        offset: where the slots begin, in bytes.
        slot_bytes: distance between two.
        together: whether all workers fill one slot.
        shares: sub-environments of each worker.
        credits: how many rollouts of one worker can be under way at once.
    """

    memory: Any
    spec: RolloutSpec
    offset: int
    slot_bytes: int
    together: bool
    shares: tuple[int, ...]
    credits: int


@dataclass(frozen=True)
class BoardMap:
    """Where the rows of every worker lie in the driver's memory.

    Args:
        memory: the driver's, all of it.
        spec: what the board holds.
        offset: where it begins, in bytes.
        shares: rows of each worker.
    """

    memory: Any
    spec: BoardSpec
    offset: int
    shares: tuple[int, ...]


@dataclass(frozen=True)
class WeightsMap:
    """Where the versions of the weights lie.

    Args:
        memory: that they lie in.
        offset: of the first place, in bytes.
        nbytes: of one version.
        float32: ``(begin, stop)`` of the parts of a version that hold float32 numbers, in order.
    """

    memory: Any
    offset: int
    nbytes: int
    float32: tuple[tuple[int, int], ...]
