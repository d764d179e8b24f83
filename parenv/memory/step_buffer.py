"""The step buffer: shared arrays for one step of a vector env, with one row per sub-environment.

The main process writes actions and requests. Each worker writes the rows of its own sub-environments. Both notify each
other with wake-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenv.memory.layout import Field, aligned, place, sized_leaves
from parenv.memory.spaces import Leaf, is_single

ITEM_BYTES = 8
"""Bytes for each number of an action, enough for a larger dtype than the one of the space."""
_ROW_FIELDS: tuple[tuple[str, str], ...] = (
    ("rewards", "<f8"),
    ("terminated", "?"),
    ("truncated", "?"),
    ("requested", "<i8"),
    ("finished", "<i8"),
    ("orders", "<i4"),
    ("info_kinds", "<i4"),
)


@dataclass(frozen=True)
class StepBufferSpec:
    """Sizes of a step buffer.

    Args:
        num_envs: Number of sub-environments ``N``.
        observations: Leaves of the observation space.
        actions: Leaves of the action space.
        info_bytes: Bytes for the info of one sub-environment.
    """

    num_envs: int
    observations: tuple[Leaf, ...]
    actions: tuple[Leaf, ...]
    info_bytes: int

    def fields(self) -> tuple[list[Field], int]:
        """Return all arrays with their offsets, and their size in bytes."""
        N = self.num_envs
        wanted: list[tuple[tuple[str, Any], tuple[int, ...], Any]] = [((n, 0), (N,), dtype) for n, dtype in _ROW_FIELDS]
        for i, leaf in enumerate(self.actions):
            if leaf.dtype is not None:
                wanted.append((("actions", i), (N, leaf.items, max(ITEM_BYTES, np.dtype(leaf.dtype).itemsize)), "u1"))
        wanted += [(("observations", i), (N, *shape), dtype) for i, shape, dtype in sized_leaves(self.observations)]
        wanted.append((("infos", 0), (N, self.info_bytes), "u1"))
        placed, total = place(wanted, 0)
        return placed, aligned(total, 4096)


class StepBuffer:
    """The arrays of a step buffer.

    Args:
        spec: Sizes of the arrays.
        buffer: Memory with at least the size that ``spec`` needs.
        offset: Offset of the step buffer in the memory, in bytes.

    Attributes:
        rewards: float64 ``[N]``.
        terminated, truncated: bool ``[N]``.
        requested: int64 ``[N]``: number of the last request of each sub-environment.
        finished: int64 ``[N]``: number of the last finished request, written after its results.
        orders: int32 ``[N]``: a ring of orders for each worker, over the rows of its share. Order ``i`` steps the
            worker's sub-environment ``i``, and order ``~i`` resets it.
        info_kinds: int32 ``[N]``: 0: no info; > 0: format of the bytes; -1: the info comes in a message.
        infos: uint8 ``[N, info_bytes]``.
        observations: One array ``[N, *shape]`` per leaf, ``None`` if its values have no fixed size.
        actions: One array per leaf, as in ``observations``.
        action_bytes: Bytes for each number of an action, per leaf.
        one_action: Whether an action is a single array.
    """

    def __init__(self, spec: StepBufferSpec, buffer: Any, offset: int = 0) -> None:
        self.spec = spec
        arrays = {
            field.name: np.ndarray(field.shape, field.dtype, buffer, offset + field.offset)  # type: ignore[call-overload,unused-ignore]
            for field in spec.fields()[0]
        }
        self.rewards, self.terminated, self.truncated = (
            arrays[name, 0] for name in ("rewards", "terminated", "truncated")
        )
        self.requested, self.finished, self.orders = (arrays[name, 0] for name in ("requested", "finished", "orders"))
        self.info_kinds, self.infos = arrays["info_kinds", 0], arrays["infos", 0]
        self.observations = [arrays.get(("observations", i)) for i in range(len(spec.observations))]
        self._raw_actions = [arrays.get(("actions", i)) for i in range(len(spec.actions))]
        self.action_bytes = [0 if raw is None else raw.shape[-1] for raw in self._raw_actions]
        self.one_action = is_single(spec.actions)
        self.view_actions([leaf.dtype for leaf in spec.actions])

    def has_finished(self, rows: int) -> bool:
        """Tell whether the last requests of at least so many sub-environments are finished."""
        if rows == len(self.finished):
            return self.finished.tobytes() == self.requested.tobytes()
        return int(np.count_nonzero(self.finished == self.requested)) >= rows

    def view_actions(self, dtypes: Sequence[str | None]) -> None:
        """Set the dtypes of the actions, which may differ from the dtypes of the space.

        Each row begins at the same byte with every dtype, so that rows with different dtypes do not overlap.
        """
        self.actions: list[Any] = [
            None if raw is None else view_rows(raw, 0, dtype, leaf.shape)
            for leaf, raw, dtype in zip(self.spec.actions, self._raw_actions, dtypes, strict=True)
        ]


def view_rows(rows: Any, offset: int, dtype: Any, shape: Sequence[int]) -> Any:
    """Make an array ``[N, *shape]`` over the bytes at one offset of each row."""
    one = np.empty(shape, dtype)
    return np.ndarray((len(rows), *shape), dtype, rows, offset, (rows.strides[0], *one.strides))
