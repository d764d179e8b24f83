"""The step buffer: shared arrays for one step of a vector env, with one row per sub-environment.

The main process writes actions and the numbers of requests, and wakes the workers. Each worker serves each of its rows
if the number has a kind and is not finished. It writes the results, and then the number of the finished request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenv.memory.layout import Field, aligned, place, sized_leaves
from parenv.memory.order import fence
from parenv.memory.rendezvous import Rendezvous
from parenv.memory.spaces import Leaf, is_single

ITEM_BYTES = 8
"""Bytes for each number of an action, enough for a larger dtype than the one of the space."""
KINDS = 4
"""The number of a request is ``KINDS * sequence + kind``, and sequences count up."""
STEP, RESET = 1, 2
"""Kinds of requests that a worker serves when it sees their number. Requests of kind 0 are not the worker's to begin:
a message asks for them, or the main process answers them."""
Request = tuple[int, Sequence[int]]
"""Number of a request, and the columns of its rows, counted from the first of a worker."""
_ROW_FIELDS: tuple[tuple[str, str], ...] = (
    ("rewards", "<f8"),
    ("terminated", "?"),
    ("truncated", "?"),
    ("requested", "<i8"),
    ("finished", "<i8"),
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
        requested: int64 ``[N]``: number of the last request of each sub-environment, see :data:`KINDS`. It is written
            after the actions and after the messages about the request were counted.
        finished: int64 ``[N]``: number of the last finished request, written after its results.
        rendezvous: Rendezvous of the rows, from these two arrays.
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
        self.requested, self.finished = (arrays[name, 0] for name in ("requested", "finished"))
        self.rendezvous = Rendezvous(self.requested, self.finished)
        self.info_kinds, self.infos = arrays["info_kinds", 0], arrays["infos", 0]
        self.observations = [arrays.get(("observations", i)) for i in range(len(spec.observations))]
        self._raw_actions = [arrays.get(("actions", i)) for i in range(len(spec.actions))]
        self.action_bytes = [0 if raw is None else raw.shape[-1] for raw in self._raw_actions]
        self.one_action = is_single(spec.actions)
        self.view_actions([leaf.dtype for leaf in spec.actions])

    def view_actions(self, dtypes: Sequence[str | None]) -> None:
        """Set the dtypes of the actions, which may differ from the dtypes of the space.

        Each row begins at the same byte with every dtype, so that rows with different dtypes do not overlap.
        """
        self.actions: list[Any] = [
            None if raw is None else view_rows(raw, 0, dtype, leaf.shape)
            for leaf, raw, dtype in zip(self.spec.actions, self._raw_actions, dtypes, strict=True)
        ]


class OwnRequests:
    """The requests to the rows of one worker.

    Args:
        step_buffer: The step buffer.
        own: Rows of the worker.
    """

    def __init__(self, step_buffer: StepBuffer, own: slice) -> None:
        both: list[Any] = [step_buffer.requested, step_buffer.finished]
        self._requested, self._finished = (memoryview(numbers[own]) for numbers in both)
        self._columns = range(own.stop - own.start)

    def of_all(self) -> Request:
        """Return the request of all rows, which have one number."""
        return self._requested[0], self._columns

    def due(self) -> list[Request]:
        """Return the requests that the worker must serve, the oldest first."""
        requested, finished = self._requested.tobytes(), self._finished.tobytes()
        # The caller looks next for messages and actions, which the main process has written before these numbers.
        fence()
        if requested == finished:
            return []
        n, first = len(self._columns), requested[:8]
        # Requests to step all rows are the most frequent ones, and comparing bytes is faster than comparing arrays.
        if requested == n * first and finished == n * finished[:8]:
            number = int.from_bytes(first, "little")
            return [(number, self._columns)] if number % KINDS else []
        numbers = np.frombuffer(requested, "<i8")
        due = ((numbers != np.frombuffer(finished, "<i8")) & (numbers % KINDS != 0)).nonzero()[0]
        return [(one, due[numbers[due] == one].tolist()) for one in sorted(set(numbers[due].tolist()))]


def view_rows(rows: Any, offset: int, dtype: Any, shape: Sequence[int]) -> Any:
    """Make an array ``[N, *shape]`` over the bytes at one offset of each row."""
    one = np.empty(shape, dtype)
    return np.ndarray((len(rows), *shape), dtype, rows, offset, (rows.strides[0], *one.strides))
