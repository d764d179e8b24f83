"""Infos that the user named, as arrays: by the step that returned them, and by the observation they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parenv.errors import ObservationError
from parenv.memory.layout import Info, info_values
from parenv.memory.trees import as_array

Found = Mapping[str, Any]
"""The info of one sub-environment."""


class InfoRows:
    """One worker's columns of the named infos of a slot.

    Args:
        infos: Named infos.
        arrays: This worker's part of the arrays of the slot.

    Attributes:
        seen: For each observation, 0 to T, the infos that the policy takes, by name ``[B, ...]``.
    """

    def __init__(self, infos: Sequence[Info], arrays: Mapping[tuple[str, Any], Any]) -> None:
        self._infos = infos
        self._own = {info.name: [arrays["infos", name] for name in info.names] for info in infos}
        taken = [info for info in infos if info.acted_on]
        self._seen = {info.name: [arrays["seen", name] for name in info.names] for info in taken}
        self._blocks = blocks = {name: arrays["seen", name] for info in taken for name in info.names}
        length = max((len(block) for block in blocks.values()), default=0)
        self.seen: list[dict[str, Any]] = [{name: block[t] for name, block in blocks.items()} for t in range(length)]

    def __bool__(self) -> bool:
        return bool(self._infos)

    def after(self, step: int) -> dict[str, Any]:
        """Return the infos of the observations after a step."""
        return self.seen[step + 1] if self.seen else {}

    def seen_at(self, steps: Any, columns: Any) -> dict[str, Any]:
        """Return the infos of the observations at some places."""
        return {name: block[steps, columns] for name, block in self._blocks.items()}

    def begin(self, seen: Mapping[str, Any]) -> None:
        """Write the infos of the first observations."""
        for name, rows in seen.items():
            self.seen[0][name][:] = rows

    def write(self, step: int, column: int, info: Found) -> None:
        """Write the info that a step returned, also as the info of the next observation."""
        for wanted in self._infos:
            value = fitting(wanted, info.get(wanted.name))
            _put(wanted, self._own[wanted.name], step, column, value)
            if wanted.acted_on:
                _put(wanted, self._seen[wanted.name], step + 1, column, value)

    def write_first(self, row: int, column: int, info: Found) -> None:
        """Write the info that a reset returned, as the info of the observation in a row."""
        if self.seen:
            write_seen(self._infos, self.seen[row], column, info)

    def write_batch(self, step: int, infos: Found, columns: Any, own: bool = True, seen: bool = True) -> None:
        """Write the infos that a step of a ``VectorEnv`` returned.

        Args:
            step: Row of the step.
            infos: Infos of all sub-environments, as arrays.
            columns: Columns to write, int64 ``[K]``.
            own: Whether to write them as infos of the step.
            seen: Whether to write them as infos of the next observations.
        """
        for wanted in self._infos:
            values, there = batch_of(wanted, infos, columns)
            blocks = [(self._own[wanted.name], step)] if own else []
            blocks += [(self._seen[wanted.name], step + 1)] if seen and wanted.acted_on else []
            for (block, mask), row in blocks:
                block[row, columns], mask[row, columns] = values, there


def first_seen(infos: Sequence[Info], of_each: Sequence[Found]) -> dict[str, Any]:
    """Return the infos of the first observations, by name ``[B, ...]``.

    Args:
        infos: Named infos.
        of_each: Info that each sub-environment's reset returned.
    """
    seen = nothing_seen(infos, len(of_each))
    for column, info in enumerate(of_each):
        write_seen(infos, seen, column, info)
    return seen


def nothing_seen(infos: Sequence[Info], count: int) -> dict[str, Any]:
    """Make empty arrays for the infos of some observations, by name ``[count, ...]``."""
    of_each = info_values(info for info in infos if info.acted_on)
    return {name: np.zeros((count, *shape), dtype) for name, shape, dtype in of_each}


def write_seen(infos: Sequence[Info], rows: Mapping[str, Any], column: int, info: Found) -> None:
    """Write the info of an observation.

    Args:
        infos: Named infos.
        rows: Arrays by name, ``[B, ...]``.
        column: Column of the sub-environment.
        info: Info of the observation.
    """
    for wanted in infos:
        if wanted.acted_on:
            blocks = [rows[name][None] for name in wanted.names]
            _put(wanted, blocks, 0, column, fitting(wanted, info.get(wanted.name)))


def fitting(wanted: Info, value: Any) -> Any:
    """Convert the value of an info to an array with the shape and kind of the first value; ``None`` without a value.

    Raises:
        ObservationError: The value has another shape or kind.
    """
    if value is None:
        return None
    array = as_array(value)
    _check(wanted, array.shape, array.dtype)
    return array


def batch_of(wanted: Info, infos: Found, columns: Any) -> tuple[Any, Any]:
    """Return an info of some sub-environments of a ``VectorEnv``, ``[K, ...]``, and its presence mask.

    Raises:
        ObservationError: The info has another shape or kind than the first value.
    """
    found, mask = infos.get(wanted.name), infos.get(f"_{wanted.name}")
    if found is None:
        return wanted.absent, False
    there: Any = True if mask is None else as_array(mask)[columns]
    values = as_array(found)
    if values.dtype == object:
        each = [fitting(wanted, values[column]) for column in columns.tolist()]
        there = np.array([value is not None for value in each]) & there
        values = np.array([np.zeros(wanted.shape, wanted.dtype) if value is None else value for value in each])
    else:
        _check(wanted, values.shape[1:], values.dtype)
        values = values[columns]
    if there is True:
        return values, there
    return np.where(there.reshape(-1, *(1,) * len(wanted.shape)), values, wanted.absent), there


def _check(wanted: Info, shape: tuple[int, ...], dtype: Any) -> None:
    if shape != wanted.shape or not np.can_cast(dtype, wanted.dtype, "same_kind"):
        raise ObservationError(
            f"the info {wanted.name!r} must have shape {wanted.shape} and dtype {np.dtype(wanted.dtype)} like its "
            f"{'first value' if wanted.default is None else 'default'}, got {shape} and {dtype}. Return the same shape "
            "and dtype from every step and reset."
        )


def row_of(infos: Found, column: int) -> dict[str, Any]:
    """Return the info of one sub-environment from the infos of a ``VectorEnv``."""
    there = {name: infos.get(f"_{name}") for name in infos if not (name.startswith("_") and name[1:] in infos)}
    return {
        name: infos[name][column]
        for name, mask in there.items()
        if _is_batched(infos[name]) and (mask is None or mask[column])
    }


def _is_batched(value: Any) -> bool:
    return isinstance(value, list | tuple) or len(getattr(value, "shape", ())) > 0


def _put(wanted: Info, blocks: Sequence[Any], row: int, column: int, value: Any) -> None:
    values, there = blocks
    values[row, column] = wanted.absent if value is None else value
    there[row, column] = value is not None
