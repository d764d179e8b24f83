"""Convert infos of sub-environments to rows of bytes, and back to the dict of arrays that Gymnasium makes of them.

An info is a dict of any form, but most infos have one of few forms. A worker sends each form, the
:mod:`kind <parenv.memory.kinds>` of the info, once, and then writes only the number of the kind and the packed values.
Other infos (strings, lists, objects, too many values, too many kinds) travel in messages.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parenv.errors import ProtocolError
from parenv.memory.kinds import (
    BY_MESSAGE,
    DTYPES,
    FINAL_OBSERVATION,
    FORMATS,
    MAX_KINDS,
    OBJECTS,
    DoesNotFitError,
    Kind,
    array_bytes,
    format_of,
    kind_of,
    parts_of,
)
from parenv.memory.step_buffer import view_rows
from parenv.memory.trees import own_copy


class Announced(dict[int, Any]):
    """Data from messages, by the number with which the step buffer refers to it.

    Args:
        what: Name of the data, for the error about an unknown number.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __missing__(self, number: int) -> Any:
        raise ProtocolError(f"a worker has not sent {self._what} number {number}")


class InfoWriter:
    """Writes the infos of a worker's sub-environments.

    Args:
        kinds: Kind of each info, int32 ``[N]``.
        infos: Bytes of each info, uint8 ``[N, info_bytes]``.
        number: Function that returns the number of this worker's kind ``i``, which no other worker uses.
    """

    def __init__(self, kinds: Any, infos: Any, number: Callable[[int], int]) -> None:
        self._kinds, self._number = kinds, number
        self._buffer = memoryview(infos.reshape(-1))
        self._row_bytes = infos.shape[1]
        self._flat: dict[Any, tuple[int, Callable[..., None]]] = {}
        self._known: dict[Kind, tuple[int, Callable[..., None]]] = {}
        self.new: list[tuple[int, Kind]] = []

    def write(self, env_id: int, info: Mapping[str, Any]) -> bool:
        """Write a non-empty info; return whether it fits into the step buffer."""
        shape = (tuple(info), tuple(map(type, info.values())))
        known = self._flat.get(shape)
        try:
            if known is None:
                values: list[Any] = []
                kind = kind_of(info, values)
                known = self._known.get(kind) or self._learn(kind)
                if all(type(part) is str for _, part in kind[1]) and "none" not in [part for _, part in kind[1]]:
                    self._flat[shape] = known
            else:
                values = list(info.values())
            known[1](self._buffer, env_id * self._row_bytes, *values)
        except (DoesNotFitError, struct.error, OverflowError):
            self._kinds[env_id] = BY_MESSAGE
            return False
        self._kinds[env_id] = known[0]
        return True

    def _learn(self, kind: Kind) -> tuple[int, Callable[..., None]]:
        packer = struct.Struct("<" + format_of(kind))
        if packer.size > self._row_bytes or len(self._known) == MAX_KINDS:
            raise DoesNotFitError
        known = self._known[kind] = (self._number(len(self._known)), packer.pack_into)
        self.new.append((known[0], kind))
        return known


class InfoReader:
    """Reads infos back, in the form of ``gymnasium.vector.VectorEnv``.

    Args:
        kinds: Kind of each info, int32 ``[N]``.
        infos: Bytes of each info, uint8 ``[N, info_bytes]``.
        add_info: Gymnasium's function ``(infos, info, i, n) -> infos``, for infos from messages.
    """

    def __init__(self, kinds: Any, infos: Any, add_info: Callable[[Any, Any, int, int], Any]) -> None:
        self._kinds, self._infos, self._add_info = kinds, infos, add_info
        self._nodes: dict[int, _Dict] = Announced("a kind of info")
        self._by_kind: dict[Kind, _Dict] = {}

    def learn(self, number: int, kind: Kind) -> None:
        """Store the kind with this number."""
        if kind not in self._by_kind:
            self._by_kind[kind], _ = _node(kind, self._infos, 0)
        self._nodes[number] = self._by_kind[kind]

    def read(self, env_ids: Any, by_message: Mapping[int, Any]) -> dict[str, Any]:
        """Return the infos of these sub-environments, each array ``[len(env_ids), ...]``.

        Args:
            env_ids: Sub-environments, or ``None`` for all.
            by_message: Infos from messages, by env_id.
        """
        kinds = self._kinds if env_ids is None else self._kinds[env_ids]
        n = len(kinds)
        numbers = kinds.tolist()
        distinct = set(numbers)
        if BY_MESSAGE in distinct:
            return self._one_by_one(numbers, range(n) if env_ids is None else env_ids.tolist(), by_message)
        if 0 not in distinct:
            nodes = {self._nodes[number] for number in distinct}
            if len(nodes) == 1:
                return nodes.pop().add({}, n, None, slice(None) if env_ids is None else env_ids)
        found: dict[str, Any] = {}
        groups: dict[_Dict, list[int]] = {}
        for position, number in enumerate(numbers):
            if number:
                groups.setdefault(self._nodes[number], []).append(position)
        try:
            for node, positions in groups.items():
                node.add(found, n, positions, positions if env_ids is None else env_ids[positions])
        except Exception:
            # The same key has a dict in one info and a number in another.
            return self._one_by_one(numbers, range(n) if env_ids is None else env_ids.tolist(), by_message)
        return found

    def each(self, by_message: Mapping[int, Any]) -> list[dict[str, Any]]:
        """Return a copy of the info of every sub-environment; an empty dict if there was none."""
        infos = []
        for env_id, number in enumerate(self._kinds.tolist()):
            info = self._one(number, env_id, by_message) if number else {}
            infos.append(own_copy(info) if number == BY_MESSAGE else info)
        return infos

    def _one(self, number: int, env_id: int, by_message: Mapping[int, Any]) -> Any:
        return by_message[env_id] if number == BY_MESSAGE else self._nodes[number].value(env_id)

    def _one_by_one(
        self, numbers: Sequence[int], env_ids: Sequence[int], by_message: Mapping[int, Any]
    ) -> dict[str, Any]:
        placed = [
            (position, self._one(number, env_id, by_message))
            for position, (number, env_id) in enumerate(zip(numbers, env_ids, strict=True))
            if number
        ]
        return _joined(placed, len(numbers), self._add_info)


def _joined(placed: Sequence[tuple[int, Any]], n: int, add_info: Callable[[Any, Any, int, int], Any]) -> dict[str, Any]:
    """Join infos as Gymnasium does. Values that Gymnasium refuses are put into an array of objects.

    Args:
        placed: Infos, each with its position.
        n: Number of positions.
        add_info: Gymnasium's function ``(infos, info, i, n) -> infos``.
    """
    found: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        for position, info in placed:
            found = add_info(found, info, position, n)
        return found
    # Gymnasium refuses timedeltas with a unit, large integers, and values of one key that do not fit into one array.
    keys = dict.fromkeys(key for _, info in placed for key in info)
    found = {}
    for key in keys:
        mine = [(position, info[key]) for position, info in placed if key in info]
        if len(keys) > 1:
            found |= _joined([(position, {key: value}) for position, value in mine], n, add_info)
            continue
        if all(isinstance(value, dict) for _, value in mine):
            found[key] = _joined(mine, n, add_info)
        else:
            found[key] = np.full(n, None, object)
            for position, value in mine:
                found[key][position] = value
        found[f"_{key}"] = np.isin(np.arange(n), [position for position, _ in mine])
    return found


class _Value:
    """A scalar or array of a kind, as a column over all rows."""

    def __init__(self, column: Any, code: str) -> None:
        self.column, self._code = column, code
        self._is_object = code in OBJECTS

    def empty(self, n: int) -> Any:
        if self._is_object:
            return np.full(n, None, object)
        return np.zeros((n, *self.column.shape[1:]), self.column.dtype)

    def put(self, array: Any, positions: Sequence[int], rows: Any) -> None:
        if array.dtype == self.column.dtype and array.shape[1:] == self.column.shape[1:] and not self._is_object:
            array[positions] = self.column[rows]
            return
        # Another sub-environment has another type under the same key. Gymnasium assigns one by one, so do the same.
        for position, row in zip(positions, rows, strict=True):
            array[position] = self.value(int(row))

    def value(self, row: int) -> Any:
        if self._code == "none":
            return None
        if self._code == "array":
            return self.column[row, ...].copy()
        one = self.column[row]
        return one.item() if self._code in DTYPES else one

    def whole(self, n: int, rows: Any) -> Any:
        """Copy the values of all positions to a new array."""
        if self._is_object:
            array = self.empty(n)
            self.put(array, range(n), range(n) if isinstance(rows, slice) else rows)
            return array
        return self.column.copy() if isinstance(rows, slice) else self.column[rows]


class _Tuple:
    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    def value(self, row: int) -> Any:
        return tuple(part.value(row) for part in self._parts)


class _Dict:
    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = [(key, "_" + key, part) for key, part in parts.items()]

    def value(self, row: int) -> Any:
        return {key: part.value(row) for key, _, part in self._parts}

    def add(self, found: dict[str, Any], n: int, positions: Sequence[int] | None, rows: Any) -> dict[str, Any]:
        """Add the infos of these rows to others. ``positions`` is ``None`` for all."""
        for key, mask_key, part in self._parts:
            array = found.get(key)
            if key == FINAL_OBSERVATION:
                array = np.full(n, None, object) if array is None else array
                for position, row in zip(*_pairs(n, positions, rows), strict=True):
                    array[position] = part.value(int(row))
            elif isinstance(part, _Dict):
                array = part.add({} if array is None else array, n, positions, rows)
            elif positions is None and array is None:
                array = part.whole(n, rows)
            else:
                array = part.empty(n) if array is None else array
                part.put(array, *_pairs(n, positions, rows))
            mask = found.get(mask_key)
            if positions is None:
                mask = np.ones(n, bool)
            else:
                mask = np.zeros(n, bool) if mask is None else mask
                mask[positions] = True
            found[key], found[mask_key] = array, mask
        return found


def _pairs(n: int, positions: Sequence[int] | None, rows: Any) -> tuple[Any, Any]:
    return range(n) if positions is None else positions, range(n) if isinstance(rows, slice) else rows


def _node(kind: Kind, infos: Any, offset: int) -> tuple[Any, int]:
    """Make the reader of a kind whose bytes begin at an offset of each row; also return the offset of their end."""
    if isinstance(kind, str):
        column = view_rows(infos, offset, DTYPES.get(kind, kind), ())
        return _Value(column, kind), offset + struct.calcsize("<" + FORMATS[kind])
    if kind[0] == "array":
        return _Value(view_rows(infos, offset, kind[1], kind[2]), "array"), offset + -(-array_bytes(kind) // 8) * 8
    parts = []
    for part in parts_of(kind):
        node, offset = _node(part, infos, offset)
        parts.append(node)
    if kind[0] == "tuple":
        return _Tuple(parts), offset
    return _Dict(dict(zip([key for key, _ in kind[1]], parts, strict=True))), offset
