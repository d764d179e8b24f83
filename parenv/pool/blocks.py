"""Whose columns lie in one slot: those of one worker, or, where all fill it together, of all side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from parenv.experience.assembly import Columns
from parenv.memory.agent_layout import AgentsLayout
from parenv.memory.layout import SlotLayout

LayOut = Callable[[int, int], SlotLayout | AgentsLayout]
"""``(sub-environments, workers) -> layout`` of a slot."""


@dataclass(frozen=True)
class Block:
    """What lies in a slot, and whose it is.

    Args:
        layout: of the slot.
        worker: who fills it, or ``None`` where all do.
        workers: those who fill it, in the order of their columns.
        columns: of each.
        env_ids_of: of each, its sub-environments.
        env_ids: those of all, int64 ``[B]``.
    """

    layout: SlotLayout | AgentsLayout
    worker: int | None
    workers: range
    columns: tuple[Columns, ...]
    env_ids_of: tuple[range, ...]
    env_ids: Any


def blocks_of(lay_out: LayOut, env_ids_of: Sequence[range], together: bool) -> list[Block]:
    """By worker, the block that it fills.

    Args:
        lay_out: a slot.
        env_ids_of: by worker, its sub-environments.
        together: whether all fill one slot.
    """
    if together:
        return [_block(lay_out, range(len(env_ids_of)), env_ids_of, None)] * len(env_ids_of)
    return [_block(lay_out, range(w, w + 1), [env_ids], w) for w, env_ids in enumerate(env_ids_of)]


def _block(lay_out: LayOut, workers: range, env_ids_of: Sequence[range], worker: int | None) -> Block:
    begins = list(accumulate(map(len, env_ids_of), initial=0))
    return Block(
        layout=lay_out(begins[-1], len(workers)),
        worker=worker,
        workers=workers,
        columns=tuple(Columns(i, first, stop) for i, (first, stop) in enumerate(pairwise(begins))),
        env_ids_of=tuple(env_ids_of),
        env_ids=np.arange(env_ids_of[0].start, env_ids_of[-1].stop),
    )
