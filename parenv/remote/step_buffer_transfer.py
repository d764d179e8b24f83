"""Transfer of one worker's rows between two step buffers of the same layout, as raw bytes.

The step buffer of the main process has all rows. A worker on a host has a step buffer with the same layout at the same
offset, and uses only its own rows of it. Requests are transferred for all rows, answers row by row.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.errors import ProtocolError
from parenv.memory.kinds import BY_MESSAGE
from parenv.memory.layout import Field
from parenv.memory.maps import StepBufferMap
from parenv.memory.order import fence
from parenv.remote.host_messages import RowPlan

REQUESTED = ("requested", "orders", "actions")
ANSWERED = ("finished", "info_kinds", "rewards", "terminated", "truncated", "observations")


def row_plan(step_buffer: StepBufferMap, worker: int) -> RowPlan:
    """Return the location of a worker's rows in a step buffer."""
    (infos,) = _columns(step_buffer, worker, ("infos",))
    return RowPlan(
        share=step_buffer.shares[worker],
        memory_bytes=step_buffer.offset + step_buffer.spec.fields()[1],
        requests=_columns(step_buffer, worker, REQUESTED),
        answers=_columns(step_buffer, worker, ANSWERED),
        infos=infos,
    )


def _columns(step_buffer: StepBufferMap, worker: int, names: Sequence[str]) -> list[list[int]]:
    """Return ``[offset, bytes per row]`` of each leaf of these fields, in the order of the names."""
    first, fields = sum(step_buffer.shares[:worker]), _fields(step_buffer, names)
    return [[step_buffer.offset + field.offset + first * field.row_bytes, field.row_bytes] for field in fields]


def flags_of(step_buffer: StepBufferMap) -> list[int]:
    """Return the indices of the columns of :data:`ANSWERED` that hold truth values."""
    return [i for i, field in enumerate(_fields(step_buffer, ANSWERED)) if np.dtype(field.dtype) == bool]


def _fields(step_buffer: StepBufferMap, names: Sequence[str]) -> list[Field]:
    fields = (field for field in step_buffer.spec.fields()[0] if field.name[0] in names)
    return sorted(fields, key=lambda field: (names.index(field.name[0]), field.name[1]))


class WorkerRows:
    """The rows of one worker, in the main process or on a host.

    Args:
        memory: Memory with the step buffer.
        plan: Location of the rows, from :func:`row_plan`.
        flags: Indices of the answers that must be 0 or 1.

    Attributes:
        plan: Location of the rows.
        row_bytes: Maximum size of one answered row.
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
        """Return a copy of the requests to all rows."""
        return np.concatenate([column.reshape(-1) for column in self._requests]).data

    def write_requests(self, data: memoryview) -> None:
        """Write the requests that :meth:`requests` has returned in the main process."""
        block, begin = np.frombuffer(data, np.uint8), 0
        for column in self._requests:
            column.reshape(-1)[:] = block[begin : begin + column.size]
            begin += column.size

    def forget(self) -> None:
        """Treat all later answers as new, even with the number of an earlier answer."""
        self._finished[:] = -1
        self._kinds[:] = 0
        self._seen = self._finished.copy()

    def answers(self, most_bytes: int) -> list[tuple[list[int], memoryview]]:
        """Return the answers since the last call: row numbers within the worker, and the bytes of these rows.

        Args:
            most_bytes: Maximum size of the bytes, unless a single row has more.
        """
        # The worker writes a row before its number. Rows that are copied after the numbers are at least as new.
        finished = self._finished.copy()
        fence()
        changed = np.flatnonzero(finished != self._seen)
        self._seen = finished
        each = max(1, most_bytes // self.row_bytes)
        return [self._copied(changed[i : i + each], finished) for i in range(0, len(changed), each)]

    def write_answers(self, rows: Any, data: memoryview, kinds: range) -> None:
        """Write the answers that :meth:`answers` has returned on a host.

        Args:
            rows: Row numbers within the worker.
            data: Bytes of the rows.
            kinds: Numbers that the worker may give to the kinds of its infos.

        Raises:
            ProtocolError: The answers do not fit the requests to these rows. Nothing was written.
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
        """Check numbers, kinds of infos and truth values. Returns the rows with an info."""
        finished, kinds = np.frombuffer(parts[0].tobytes(), "<i8"), np.frombuffer(parts[1].tobytes(), "<i4")
        if (finished > self._requested[rows]).any():
            raise ProtocolError("a request is answered that was never made")
        if unknown := [kind for kind in set(kinds.tolist()) - {0, BY_MESSAGE} if kind not in allowed]:
            raise ProtocolError(f"the infos of this worker cannot be of kind {unknown[0]}")
        if any((parts[i] > 1).any() for i in self._flags):
            raise ProtocolError("truth values are 0 or 1")
        return rows[kinds > 0]
