"""Parts of whole episodes: consecutive rows of one sub-environment, and the rollout of an episode that is complete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from parenv.experience.assembly import assemble_rows
from parenv.experience.rollout import Rollout
from parenv.memory.layout import ROLLOUT_FIELDS, Axes, RolloutSpec
from parenv.memory.trees import concatenated, copy_of, joined_axes, map_trees

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


def joined(parts: Sequence[Any]) -> Any:
    """Join consecutive rows, each a tree of arrays or lists."""
    return parts[0] if len(parts) == 1 else map_trees(concatenated, *parts)


class OpenEpisodes:
    """Parts of the episodes in progress of some sub-environments.

    An episode is left out if its beginning was not seen, or if it has become too large.

    Args:
        limit: Limit for the sum of the sizes of an episode's parts.

    Attributes:
        too_large: Number of episodes that were too large.

    >>> episodes = OpenEpisodes(limit=3)
    >>> episodes.add(0, "middle", 1)
    >>> episodes.begin(1)
    >>> episodes.add(1, "first", 1)
    >>> episodes.add(1, "last", 2)
    >>> episodes.end(0), episodes.end(1)
    ([], ['first', 'last'])
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._parts: dict[int, list[Any]] = {}
        self._sizes: dict[int, int] = {}
        self.too_large = 0

    def __contains__(self, key: int) -> bool:
        return key in self._parts

    def begin(self, key: int) -> None:
        """Begin an episode. If another is in progress, it is left out."""
        self._parts[key], self._sizes[key] = [], 0

    def add(self, key: int, part: Any, size: int) -> None:
        """Add a part to the episode in progress, unless that is left out."""
        if key not in self._parts:
            return
        self._parts[key].append(part)
        self._sizes[key] += size
        if self._sizes[key] > self._limit:
            del self._parts[key]
            self.too_large += 1

    def end(self, key: int) -> list[Any]:
        """End an episode; return its parts. There are none if it was left out."""
        return self._parts.pop(key, [])

    def clear(self) -> None:
        """Leave out all episodes in progress."""
        self._parts.clear()


def rollout_of_episode(
    spec: RolloutSpec,
    values: Values,
    records: Any,
    finals: Sequence[Any],
    *,
    initial_carry: Any,
    env_id: int,
    worker: int,
    newest: int,
    extras: Sequence[str],
) -> Rollout:
    """Build the rollout ``[N, 1]`` of an episode, or of some, one after another. Arrays are not copied.

    Args:
        spec: Content of the slot.
        values: Rows of the episodes, with one more observation after the last row.
        records: Their ends, :data:`~parenv.memory.layout.END_DTYPE` ``[K]``. The last row is filled in.
        finals: Final observations, one array or list ``[K, ...]`` per leaf.
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

    records["step"][-1], records["column"] = num_steps - 1, 0
    versions = np.ascontiguousarray(rows["version"])[:, None]
    oldest = int(versions.min())
    return assemble_rows(
        replace(spec, rollout_length=num_steps),
        take,
        extras,
        records,
        finals,
        env_ids=np.array([env_id]),
        worker=worker,
        policy_version=oldest,
        policy_lag=newest - oldest,
        policy_versions=versions,
    )
