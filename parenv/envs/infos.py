"""Infos that the user named, written as arrays: what each step returned, and what came with each observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parenv.errors import ObservationError
from parenv.memory.layout import Info

Found = Mapping[str, Any]
"""The info of one sub-environment."""


class InfoRows:
    """One worker's columns of the named infos of a slot.

    Args:
        infos: what was named.
        arrays: this worker's part of those of the slot.

    Attributes:
        seen: for each observation, 0 to T, what came with it, by name ``[B, ...]``: the infos that the policy takes.
    """

    def __init__(self, infos: Sequence[Info], arrays: Mapping[tuple[str, Any], Any]) -> None:
        self._infos = infos
        self._own = {info.name: [arrays["infos", name] for name in info.names] for info in infos}
        taken = [info for info in infos if info.acted_on]
        self._seen = {info.name: [arrays["seen", name] for name in info.names] for info in taken}
        blocks = {name: arrays["seen", name] for info in taken for name in info.names}
        length = max((len(block) for block in blocks.values()), default=0)
        self.seen: list[dict[str, Any]] = [{name: block[t] for name, block in blocks.items()} for t in range(length)]

    def __bool__(self) -> bool:
        return bool(self._infos)

    def after(self, step: int) -> dict[str, Any]:
        """What came with the observations after a step."""
        return self.seen[step + 1] if self.seen else {}

    def begin(self, seen: Mapping[str, Any]) -> None:
        """Write what came with the first observations."""
        for name, rows in seen.items():
            self.seen[0][name][:] = rows

    def write(self, step: int, column: int, info: Found) -> None:
        """Write what a step returned, as what came with the next observation too."""
        for wanted in self._infos:
            value = as_array(wanted, info.get(wanted.name))
            _put(self._own[wanted.name], step, column, value)
            if wanted.acted_on:
                _put(self._seen[wanted.name], step + 1, column, value)

    def write_own(self, step: int, column: int, info: Found) -> None:
        """Write what a step returned that ended an episode, and not what came with the next observation."""
        for wanted in self._infos:
            _put(self._own[wanted.name], step, column, as_array(wanted, info.get(wanted.name)))

    def write_first(self, row: int, column: int, info: Found) -> None:
        """Write what a reset returned, as what came with the observation of a row."""
        for name, blocks in self._seen.items():
            wanted = next(one for one in self._infos if one.name == name)
            _put(blocks, row, column, as_array(wanted, info.get(name)))


def first_seen(infos: Sequence[Info], of_each: Sequence[Found]) -> dict[str, Any]:
    """What came with the first observations, by name ``[B, ...]``.

    Args:
        infos: what was named.
        of_each: the info that each sub-environment's reset returned.
    """
    seen: dict[str, Any] = {}
    for wanted in infos:
        if wanted.acted_on:
            rows = np.zeros((1, len(of_each), *wanted.shape), wanted.dtype), np.zeros((1, len(of_each)), bool)
            for column, info in enumerate(of_each):
                _put(rows, 0, column, as_array(wanted, info.get(wanted.name)))
            seen |= {name: block[0] for name, block in zip(wanted.names, rows, strict=True)}
    return seen


def as_array(wanted: Info, value: Any) -> Any:
    """The value of an info as an array of the shape and kind that it had at the start; ``None`` where it is not there.

    Raises:
        ObservationError: it has another shape or kind.
    """
    if value is None:
        return None
    array = np.asarray(value)
    if array.shape != wanted.shape or not np.can_cast(array.dtype, wanted.dtype, "same_kind"):
        raise ObservationError(
            f"the info {wanted.name!r} has shape {array.shape} and dtype {array.dtype}; at the start it had "
            f"{wanted.shape} and {np.dtype(wanted.dtype)}. Let it be the same in every step and reset"
        )
    return array


def row_of(infos: Found, column: int) -> dict[str, Any]:
    """The info of one sub-environment in those of a ``VectorEnv``."""
    there = {name: infos.get(f"_{name}") for name in infos if not _is_mask(name, infos)}
    return {
        name: infos[name][column]
        for name, mask in there.items()
        if isinstance(infos[name], np.ndarray | list | tuple) and (mask is None or mask[column])
    }


def _is_mask(name: str, infos: Found) -> bool:
    return name.startswith("_") and name[1:] in infos


def _put(blocks: Sequence[Any], row: int, column: int, value: Any) -> None:
    values, there = blocks
    values[row, column] = 0 if value is None else value
    there[row, column] = value is not None
