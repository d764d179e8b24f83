"""Trays: memory of one environment each, in which large arrays of an answer go to the main process."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space

from parenv.errors import ConfigurationError
from parenv.memory.layout import aligned
from parenv.memory.spaces import leaves

LEAST_BYTES = 1 << 16
"""Size of the smallest array that goes in a tray. A message takes no longer for smaller ones."""
Placed = list[list[Any]]
"""Path in the value, dtype, shape and offset in the tray of each array that is not in the message."""


def tray_bytes(space: Space[Any]) -> int:
    """Return the size of a tray for observations of a space; 0 if they are small or have no fixed size."""
    try:
        sizes = [leaf.nbytes for leaf in leaves(space)]
    except ConfigurationError:  # A key of a Dict space is not a text.
        return 0
    return sum(aligned(size) for size in sizes if size >= LEAST_BYTES)


class Tray:
    """The tray of one environment. It has one answer at a time, which is read before the next request.

    Args:
        memory: Memory of the tray. Default: none, so that everything goes in messages.

    >>> tray = Tray(memoryview(bytearray(1 << 20)))
    >>> value, placed = tray.put({"image": np.full((200, 200, 3), 7, np.uint8), "text": "seven"})
    >>> value, placed
    ({'image': None, 'text': 'seven'}, [[['image'], '|u1', [200, 200, 3], 0]])
    >>> int(tray.take(value, placed)["image"].sum())
    840000
    """

    def __init__(self, memory: memoryview | None = None) -> None:
        self._memory, self._size = memory, 0 if memory is None else memory.nbytes

    def put(self, value: Any) -> tuple[Any, Placed]:
        """Put the large arrays of a value in the tray; return the value without them, and where they are."""
        placed: Placed = []
        return (self._put(value, [], placed, [0]) if self._size else value), placed

    def take(self, value: Any, placed: Placed) -> Any:
        """Return a value with copies of its large arrays, which the tray may overwrite from then on."""
        for path, dtype, shape, offset in placed:
            array = np.ndarray(shape, dtype, self._memory, offset).copy()
            value = _with(value, path, array)
        return value

    def _put(self, value: Any, path: list[Any], placed: Placed, end: list[int]) -> Any:
        kind = type(value)
        if kind is dict:
            return {key: self._put(part, [*path, key], placed, end) for key, part in value.items()}
        if kind is list or kind is tuple:
            return kind(self._put(part, [*path, number], placed, end) for number, part in enumerate(value))
        if kind is not np.ndarray or value.dtype.kind not in "biuf" or value.nbytes < LEAST_BYTES:
            return value
        offset, stop = end[0], end[0] + aligned(value.nbytes)
        if stop > self._size:
            return value
        np.ndarray(value.shape, value.dtype, self._memory, offset)[...] = value
        placed.append([path, value.dtype.str, list(value.shape), offset])
        end[0] = stop
        return None


def _with(value: Any, path: list[Any], array: Any) -> Any:
    if not path:
        return array
    first, *rest = path
    part = _with(value[first], rest, array)
    if isinstance(value, tuple):
        return (*value[:first], part, *value[first + 1 :])
    value[first] = part
    return value
