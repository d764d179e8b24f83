"""The infos of many steps as few arrays: what a worker says of them, and what the driver makes of that."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenv.protocol.plain import plain_info

Info = dict[str, Any]
Told = tuple[list[tuple[list[Any], list[str], Any, Any, list[Any]]], list[tuple[int, int, Info]]]
"""Tables of infos with the same keys and types: keys, names of types, steps, env_ids, columns; and single infos.

A key is a list of two where the info has a dict, as a Monitor's has at an episode's end: its key, and one in it.
"""

_PYTHON: dict[type[Any], Any] = {float: np.float64, int: np.int64, bool: np.bool_}
_NUMPY: tuple[type[Any], ...] = (np.float64, np.float32, np.int64, np.int32, np.bool_)
_NAMES = {kind: kind.__name__ for kind in _PYTHON} | {kind: f"numpy {kind.__name__}" for kind in _NUMPY}
_ITEM_LISTS = {_NAMES[kind]: np.ndarray.tolist for kind in _PYTHON} | {_NAMES[kind]: list for kind in _NUMPY}


class InfoLog:
    """Keeps infos of several sub-environments until they are taken.

    >>> log = InfoLog()
    >>> log.add(0, 4, {"speed": 0.5, "stuck": False})
    >>> log.add(0, 5, {"speed": 0.25, "stuck": True})
    >>> log.add(1, 4, {"speed": 1.0, "stuck": False, "episode": {"r": 3.0, "l": 7}})
    >>> infos = infos_of([log.take()])
    >>> infos[0][5], infos[1][4]["episode"]
    ({'speed': 0.25, 'stuck': True}, {'r': 3.0, 'l': 7})
    """

    def __init__(self) -> None:
        self._tables: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        self._single: list[tuple[int, int, Info]] = []

    def add(self, step: int, env_id: int, info: Info) -> None:
        """Keep a copy of the info of a step."""
        if not (self._adds(step, env_id, info) or self._adds(step, env_id, _opened(info))):
            self._single.append((step, env_id, copy.deepcopy(info)))

    def _adds(self, step: int, env_id: int, info: Info) -> bool:
        """Whether an info is all of numbers, which is kept then."""
        kinds = tuple(map(type, info.values()))
        if not _NAMES.keys() >= set(kinds):
            return False
        self._tables.setdefault((tuple(info), kinds), []).append((step, env_id, *info.values()))
        return True

    def take(self) -> Told:
        """All since the last time, as plain data."""
        tables, single = [], [(step, env_id, plain_info(info)[0]) for step, env_id, info in self._single]
        for (among, kinds), rows in self._tables.items():
            keys = [[key.outer, key.inner] if type(key) is _Inner else key for key in among]
            try:
                steps, env_ids, *columns = (
                    np.array(values, _PYTHON.get(kind, kind))
                    for kind, values in zip((int, int, *kinds), zip(*rows, strict=True), strict=True)
                )
                tables.append((keys, [_NAMES[kind] for kind in kinds], steps, env_ids, columns))
            except OverflowError:  # An integer of more than 64 bits.
                single += [(step, env_id, _info(keys, values)) for step, env_id, *values in rows]
        self._tables, self._single = {}, []
        return tables, single


def infos_of(told: Iterable[Told], among: Collection[str] = ()) -> dict[int, dict[int, Info]]:
    """The infos by step and env_id, their values in the types that they had; with keys, those that have one of them."""
    found: defaultdict[int, dict[int, Info]] = defaultdict(dict)
    for tables, single in told:
        for step, env_id, info in single:
            if not among or info.keys() & among:
                found[step][env_id] = info
        for keys, kinds, steps, env_ids, columns in tables:
            if among and not {key[0] if type(key) is list else key for key in keys}.intersection(among):
                continue
            lists = [_ITEM_LISTS[kind](column) for kind, column in zip(kinds, columns, strict=True)]
            for step, env_id, *values in zip(steps.tolist(), env_ids.tolist(), *lists, strict=True):
                found[step][env_id] = _info(keys, values)
    return found


@dataclass(frozen=True)
class _Inner:
    """A key of a dict in an info, and the info's own key of that."""

    outer: Any
    inner: Any


def _opened(info: Info) -> dict[Any, Any]:
    """An info with what is in its dicts beside what is in itself."""
    opened: dict[Any, Any] = {}
    for key, value in info.items():
        if type(value) is dict and value:
            opened |= {_Inner(key, inner): part for inner, part in value.items()}
        else:
            opened[key] = value
    return opened


def _info(keys: Sequence[Any], values: Sequence[Any]) -> Info:
    info: Info = {}
    for key, value in zip(keys, values, strict=True):
        if type(key) is list:
            info.setdefault(key[0], {})[key[1]] = value
        else:
            info[key] = value
    return info
