"""Parts of whole episodes: consecutive rows of one sub-environment, and the rollout of an episode that is complete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from parenv.experience.assembly import assemble_rows
from parenv.experience.rollout import Rollout
from parenv.memory.layout import ROLLOUT_FIELDS, Axes, RolloutSpec
from parenv.memory.trees import concatenated, copy_of, joined_axes

PART_AXES = (Axes.STEPS, Axes.OBSERVATIONS)
Values = Mapping[tuple[str, Any], Any]
"""Arrays or lists of consecutive rows, by field and key, with the fields of a slot that have :data:`PART_AXES`.

After the last row of an episode there is one more observation."""
_NO = np.zeros(1, np.bool_)


class Piece(NamedTuple):
    """Consecutive rows of one sub-environment in a slot.

    Args:
        column: Column of the sub-environment.
        begin: First row.
        stop: Row after the last one.
        begins: Whether the piece is the beginning of an episode.
        restarted: Whether an episode of the sub-environment was lost before it.
        ends: Whether its last row is the one after an episode's end.
    """

    column: int
    begin: int
    stop: int
    begins: bool
    restarted: bool
    ends: bool


def pieces_of(rows: Any) -> Iterator[Piece]:
    """Yield the pieces in the rows of a slot, :data:`~parenv.memory.layout.ROW_DTYPE` ``[n]``.

    >>> from parenv.memory.layout import ROW_DTYPE
    >>> rows = np.zeros(5, ROW_DTYPE)
    >>> rows["column"], rows["begins"][3], rows["is_after"][2] = [1, 1, 1, 1, 0], 1, 1
    >>> [(piece.column, piece.begin, piece.stop, piece.ends) for piece in pieces_of(rows)]
    [(1, 0, 3, True), (1, 3, 4, False), (0, 4, 5, False)]
    """
    if not len(rows):
        return
    columns, begins = rows["column"], rows["begins"] != 0
    cuts = np.flatnonzero((columns[1:] != columns[:-1]) | begins[1:]) + 1
    first, stop = np.append(0, cuts), np.append(cuts, len(rows))
    about = (columns[first], first, stop, begins[first], rows["restarted"][first] != 0, rows["is_after"][stop - 1] != 0)
    yield from map(Piece._make, zip(*(part.tolist() for part in about), strict=True))


def rows_of_slot(arrays: Mapping[tuple[str, Any], Any]) -> dict[tuple[str, Any], Any]:
    """Return the arrays of a slot ``[T, B, ...]`` that have rows as arrays of rows, ``[T * B, ...]``."""
    return {name: joined_axes(array) for name, array in arrays.items() if ROLLOUT_FIELDS[name[0]].axes in PART_AXES}


def cut(values: Values, begin: int, stop: int) -> Values:
    """Return some of the rows."""
    return {name: value[begin:stop] for name, value in values.items()}


def copied(values: Values) -> Values:
    """Return rows with memory of their own."""
    return {name: copy_of(value) for name, value in values.items()}


def joined(parts: Sequence[Values]) -> Values:
    """Join consecutive rows of an episode."""
    if len(parts) == 1:
        return parts[0]
    return {name: concatenated(*(part[name] for part in parts)) for name in parts[0]}


def rollout_of_episode(
    spec: RolloutSpec,
    values: Values,
    record: Any,
    finals: Sequence[Any],
    *,
    initial_carry: Any,
    env_id: int,
    worker: int,
    newest: int,
    extras: Sequence[str],
) -> Rollout:
    """Build the rollout ``[N, 1]`` of an episode. Arrays are not copied.

    Args:
        spec: Content of the slot.
        values: Rows of the episode.
        record: Its end, :data:`~parenv.memory.layout.END_DTYPE` ``[1]``.
        finals: Final observation, one array or list ``[1, ...]`` per leaf.
        initial_carry: Arrays ``[1, ...]`` of the carry, by field and key.
        env_id: Sub-environment.
        worker: Worker that collected the episode.
        newest: Newest version.
        extras: Names of the extras that have been written.
    """
    is_after = values["rows", 0]["is_after"]
    num_steps = len(is_after) - int(is_after[-1] != 0)
    rows = values["rows", 0][:num_steps]

    def take(name: str, key: Any) -> Any:
        if name == "carry":
            return initial_carry[name, key]
        if name == "restarted":
            return rows["restarted"][:1] != 0
        if name == "resetting":
            return _NO
        axes = ROLLOUT_FIELDS[name].axes
        value = values[name, key][: num_steps + (axes is Axes.OBSERVATIONS)]
        return [[item] for item in value] if isinstance(value, list) else value[:, None]

    record["step"], record["column"] = num_steps - 1, 0
    versions = np.ascontiguousarray(rows["version"])[:, None]
    oldest = int(versions.min())
    return assemble_rows(
        replace(spec, rollout_length=num_steps),
        take,
        extras,
        record,
        finals,
        env_ids=np.array([env_id]),
        worker=worker,
        policy_version=oldest,
        policy_lag=newest - oldest,
        policy_versions=versions,
    )
