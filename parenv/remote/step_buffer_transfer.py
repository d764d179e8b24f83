"""One worker's rows of a step buffer as raw bytes, which cross between two step buffers of the same layout.

The step buffer of the main process has all rows. A worker on a host has a step buffer with the same layout at the same
offset, and uses only its own rows of it. Requests are transferred whole, answers row by row.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.errors import ProtocolError
from parenv.memory.kinds import BY_MESSAGE
from parenv.memory.layout import Field
from parenv.memory.maps import BoardMap
from parenv.memory.order import fence
from parenv.remote.host_messages import RowPlan

REQUESTED = ("requested", "orders", "actions")
ANSWERED = ("finished", "info_kinds", "rewards", "terminated", "truncated", "observations")


def row_plan(step_buffer: BoardMap, worker: int) -> RowPlan:
    """Where a worker's rows of a step buffer lie, in whichever memory has it at the same offset."""
    (infos,) = _columns(step_buffer, worker, ("infos",))
    return RowPlan(
        share=step_buffer.shares[worker],
        memory_bytes=step_buffer.offset + step_buffer.spec.fields()[1],
        requests=_columns(step_buffer, worker, REQUESTED),
        answers=_columns(step_buffer, worker, ANSWERED),
        infos=infos,
    )


def _columns(step_buffer: BoardMap, worker: int, names: Sequence[str]) -> list[list[int]]:
    """``[offset, bytes per row]`` of these fields, in the order of the names; one of several leaves has several."""
    first, fields = sum(step_buffer.shares[:worker]), _fields(step_buffer, names)
    return [[step_buffer.offset + field.offset + first * field.row_bytes, field.row_bytes] for field in fields]


def flags_of(step_buffer: BoardMap) -> list[int]:
    """Which columns of :data:`ANSWERED` hold truth values."""
    return [i for i, field in enumerate(_fields(step_buffer, ANSWERED)) if np.dtype(field.dtype) == bool]


def _fields(step_buffer: BoardMap, names: Sequence[str]) -> list[Field]:
    fields = (field for field in step_buffer.spec.fields()[0] if field.name[0] in names)
    return sorted(fields, key=lambda field: (names.index(field.name[0]), field.name[1]))


class WorkerRows:
    """The rows of one worker, on either side.

    Args:
        memory: buffer with the step buffer.
        plan: where they lie in it: requests as :data:`REQUESTED` names them, answers as :data:`ANSWERED` does.
        flags: which of the answers are to be 0 or 1.

    Attributes:
        plan: as given.
        row_bytes: what one answered row takes at most.
    """

    def __init__(self, memory: Any, plan: RowPlan, flags: Sequence[int] = ()) -> None:
        def column(offset: int, row_bytes: int) -> Any:
            return np.ndarray((plan.share, row_bytes), np.uint8, memory, offset)

        self.plan = plan
        self._share, self._flags = plan.share, flags
        self._requests = [column(*one) for one in plan.requests]
        self._answers = [column(*one) for one in plan.answers]
        self._infos = column(*plan.infos)
        self._requested, self._finished = (of[0].view("<i8")[:, 0] for of in (self._requests, self._answers))
        self._kinds = self._answers[1].view("<i4")[:, 0]
        self._fixed_bytes = sum(one.shape[1] for one in self._answers)
        self.row_bytes = self._fixed_bytes + self._infos.shape[1]
        self._seen = self._finished.copy()

    def requests(self) -> memoryview:
        """A copy of what is requested of all rows."""
        return np.concatenate([column.reshape(-1) for column in self._requests]).data

    def write_requests(self, data: memoryview) -> None:
        """Write what :meth:`requests` has given elsewhere."""
        block, begin = np.frombuffer(data, np.uint8), 0
        for column in self._requests:
            column.reshape(-1)[:] = block[begin : begin + column.size]
            begin += column.size

    def forget(self) -> None:
        """Whatever is answered from now on is news, even by the number of an earlier answer."""
        self._finished[:] = -1
        self._kinds[:] = 0
        self._seen = self._finished.copy()

    def answers(self, most_bytes: int) -> list[tuple[list[int], memoryview]]:
        """What was answered since the last time: rows counted from the worker's first one, and a copy of their bytes.

        Args:
            most_bytes: of one copy, unless a single row has more.
        """
        # The worker writes a row before its number: what is copied behind the numbers is at least as new as they are.
        finished = self._finished.copy()
        fence()
        changed = np.flatnonzero(finished != self._seen)
        self._seen = finished
        each = max(1, most_bytes // self.row_bytes)
        return [self._copied(changed[i : i + each], finished) for i in range(0, len(changed), each)]

    def write_answers(self, rows: Any, data: memoryview, kinds: range) -> None:
        """Write what :meth:`answers` has given on a host.

        Args:
            rows: as given there.
            data: as given there.
            kinds: numbers that the worker may give to the kinds of its infos.

        Raises:
            ProtocolError: these are not answers to requests of these rows; nothing was written.
        """
        self._check_rows(rows)
        n, block = len(rows), np.frombuffer(data, np.uint8)
        if block.size < n * self._fixed_bytes:
            raise ProtocolError(f"{n} rows have at least {n * self._fixed_bytes} bytes, not {block.size}")
        parts, begin = [], 0
        for column in self._answers:
            parts.append(block[begin : begin + n * column.shape[1]].reshape(n, column.shape[1]))
            begin += parts[-1].size
        with_infos = self._check_parts(np.array(rows), parts, kinds)
        infos = block[begin:]
        if infos.size != len(with_infos) * self._infos.shape[1]:
            raise ProtocolError(
                f"{len(with_infos)} infos have {len(with_infos) * self._infos.shape[1]} bytes, not {infos.size}"
            )
        self._infos[with_infos] = infos.reshape(len(with_infos), self._infos.shape[1])
        for column, part in zip(self._answers[::-1], parts[::-1], strict=True):
            column[rows] = part

    def _copied(self, rows: Any, finished: Any) -> tuple[list[int], memoryview]:
        where = slice(None) if len(rows) == self._share else rows
        parts = [column[where].reshape(-1) for column in self._answers]
        parts[0], parts[1] = finished[rows].view(np.uint8), parts[1].copy()
        with_infos = rows[parts[1].view("<i4") > 0]
        return rows.tolist(), np.concatenate([*parts, self._infos[with_infos].reshape(-1)]).data

    def _check_rows(self, rows: Any) -> None:
        if not 0 < len(rows) <= self._share:
            raise ProtocolError(f"answers must be to 1 to {self._share} rows, got {len(rows)}")
        if rows[0] < 0 or rows[-1] >= self._share or any(map(operator.ge, rows, rows[1:])):
            raise ProtocolError(f"rows must be rising numbers from 0 to {self._share - 1}")

    def _check_parts(self, rows: Any, parts: Sequence[Any], allowed: range) -> Any:
        """Check what numbers can be checked; the rows that have an info."""
        finished, kinds = np.frombuffer(parts[0].tobytes(), "<i8"), np.frombuffer(parts[1].tobytes(), "<i4")
        if (finished > self._requested[rows]).any():
            raise ProtocolError("a request is answered that was never made")
        if unknown := [kind for kind in set(kinds.tolist()) - {0, BY_MESSAGE} if kind not in allowed]:
            raise ProtocolError(f"the infos of this worker cannot be of kind {unknown[0]}")
        if any((parts[i] > 1).any() for i in self._flags):
            raise ProtocolError("truth values are 0 or 1")
        return rows[kinds > 0]
