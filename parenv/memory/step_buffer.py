"""The step buffer: where one step of a vector env lies in shared memory, one row per sub-environment.

The driver writes actions and requests, each worker the rows of its own sub-environments. Wake-ups say when to look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenv.memory.layout import Field, aligned, place, sized_leaves
from parenv.memory.spaces import Leaf, is_single

ITEM_BYTES = 8
"""Room for each number of an action, so that actions may come in another dtype than the space's."""
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
    """What a step buffer holds.

    Args:
        num_envs: ``N``.
        observations: leaves of the observation space.
        actions: leaves of the action space.
        info_bytes: room for one sub-environment's info.
    """

    num_envs: int
    observations: tuple[Leaf, ...]
    actions: tuple[Leaf, ...]
    info_bytes: int

    def fields(self) -> tuple[list[Field], int]:
        """All arrays with their offsets, and the bytes they take together."""
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
        spec: what it holds.
        buffer: memory of at least as many bytes as the spec says.
        offset: where in the buffer it begins.

    Attributes:
        rewards: float64 ``[N]``.
        terminated, truncated: bool ``[N]``.
        requested: int64 ``[N]``: number of the request that each sub-environment is to answer or has answered.
        finished: int64 ``[N]``: number of the last request that it has answered, written behind the answer.
        orders: int32 ``[N]``: a ring for each worker over the rows of its share. ``i`` says step the worker's ``i``-th
            sub-environment, ``~i`` reset it.
        info_kinds: int32 ``[N]``: 0: no info; > 0: how to read the bytes; -1: it comes by message.
        infos: uint8 ``[N, info_bytes]``.
        observations: one array ``[N, *shape]`` per leaf, ``None`` where values have no fixed size.
        actions: the same.
        action_bytes: room for each number of an action, per leaf.
        one_action: whether an action is one array and nothing else.
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

    def view_actions(self, dtypes: Sequence[str | None]) -> None:
        """Have actions lie there in these dtypes, which need not be those of the space.

        Each row begins where it does in any other dtype, so that rows are apart whatever lies there.
        """
        self.actions: list[Any] = [
            None if raw is None else view_rows(raw, 0, dtype, leaf.shape)
            for leaf, raw, dtype in zip(self.spec.actions, self._raw_actions, dtypes, strict=True)
        ]


def view_rows(rows: Any, offset: int, dtype: Any, shape: Sequence[int]) -> Any:
    """What lies at one offset of each row, as an array ``[N, *shape]`` over these rows of bytes."""
    one = np.empty(shape, dtype)
    return np.ndarray((len(rows), *shape), dtype, rows, offset, (rows.strides[0], *one.strides))
