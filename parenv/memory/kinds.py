"""Kinds of infos: the structure and the dtypes of an info, without its values.

A kind is plain data, of nested tuples: ``("dict", ((key, kind), ...))``, ``("tuple", (kind, ...))``,
``("array", dtype, shape)``, or the name of a scalar: ``"int"``, ``"float"``, ``"bool"``, ``"none"`` for Python's own,
a dtype such as ``"<f4"`` for numpy's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Kind = Any
MAX_KINDS = 256
MAX_DEPTH, MAX_DIMENSIONS, MAX_ITEMS = 64, 32, 1 << 32
FINAL_OBSERVATION = "final_obs"
WORKER_RESTARTED, ENDED_BY, LOST_ATTRIBUTES = "worker_restarted", "ended_by", "lost_attributes"
"""Infos of a vector env at an episode that was lost with its worker: a flag, the reason for the end, and the names of
attributes whose values could not be set again."""
BY_MESSAGE = -1

FORMATS = {
    "int": "q", "float": "d", "bool": "?7x", "none": "",
    "|b1": "?7x", "|i1": "b7x", "<i2": "h6x", "<i4": "i4x", "<i8": "q",
    "|u1": "B7x", "<u2": "H6x", "<u4": "I4x", "<u8": "Q",
    "<f4": "f4x", "<f8": "d",
}  # fmt: skip
_SCALARS: dict[type, str] = {int: "int", float: "float", bool: "bool", type(None): "none"}
_SCALARS.update((np.dtype(name).type, name) for name in FORMATS if name[0] in "<|")
DTYPES = {"int": "<i8", "float": "<f8", "bool": "?", "none": "?"}
OBJECTS = {"none", "|b1"}
"""Scalars that Gymnasium puts into arrays of objects."""
_ARRAY_DTYPES = {
    np.dtype(code).newbyteorder(order).str  # type: ignore[arg-type,unused-ignore]
    for code in "?" + np.typecodes["AllInteger"] + "efdg"
    for order in "<>"
}


class DoesNotFitError(Exception):
    """A value has no kind, and must be sent by message."""


def kind_of(value: Any, values: list[Any], in_observation: bool = False) -> Kind:
    """Return the kind of an info, or of a part of an info.

    Args:
        value: The info.
        values: List to which the values to pack are appended.
        in_observation: Whether the value is part of an observation, which may contain tuples. Default: no.

    Raises:
        DoesNotFitError: A part has no kind.
    """
    scalar = _SCALARS.get(type(value))
    if scalar is not None:
        if scalar != "none":
            values.append(value)
        return scalar
    if type(value) is dict:
        parts = []
        for key, part in value.items():
            if type(key) is not str:
                raise DoesNotFitError
            parts.append((key, kind_of(part, values, in_observation or key == FINAL_OBSERVATION)))
        return ("dict", tuple(parts))
    if type(value) is np.ndarray and value.dtype.kind in "?biuf":
        values.append(value.tobytes())
        return ("array", value.dtype.str, value.shape)
    if type(value) is tuple and in_observation:
        return ("tuple", tuple(kind_of(part, values, True) for part in value))
    raise DoesNotFitError


def format_of(kind: Kind) -> str:
    """Return the format of :mod:`struct` for the values of a kind."""
    if isinstance(kind, str):
        return FORMATS[kind]
    if kind[0] == "array":
        nbytes = array_bytes(kind)
        return f"{nbytes}s{-nbytes % 8}x"
    return "".join(format_of(part) for part in parts_of(kind))


def array_bytes(kind: Kind) -> int:
    """Return the number of bytes of an array of this kind."""
    return int(np.dtype(kind[1]).itemsize * math.prod(kind[2]))


def parts_of(kind: Kind) -> list[Kind]:
    """Return the kinds of the parts of a dict or tuple."""
    return [part for _, part in kind[1]] if kind[0] == "dict" else list(kind[1])


def kind_numbers(worker: int, num_workers: int) -> range:
    """Return the numbers for the kinds of a worker, which differ from those of all other workers.

    >>> list(kind_numbers(1, 2))[:3]
    [2, 4, 6]
    """
    return range(1 + worker, 1 + worker + MAX_KINDS * num_workers, num_workers)


def is_kind(kind: Any) -> bool:
    """Return whether plain data from a host is a kind.

    >>> is_kind(("dict", (("a", "<f4"), ("b", ("array", "<i8", (2,)))))), is_kind(("dict", (("a", "O"),)))
    (True, False)
    """
    return type(kind) is tuple and kind[:1] == ("dict",) and _is_kind(kind, False, 0)


def _is_kind(kind: Any, in_observation: bool, depth: int) -> bool:
    if type(kind) is not tuple or depth > MAX_DEPTH:
        return type(kind) is str and kind in FORMATS
    match kind:
        case ("array", str() as dtype, tuple() as shape):
            return dtype in _ARRAY_DTYPES and is_shape(shape)
        case ("dict", tuple() as parts):
            named = all(type(part) is tuple and len(part) == 2 and type(part[0]) is str for part in parts)
            return named and all(
                _is_kind(part, in_observation or key == FINAL_OBSERVATION, depth + 1) for key, part in parts
            )
        case ("tuple", tuple() as parts):
            return in_observation and all(_is_kind(part, True, depth + 1) for part in parts)
    return False


def is_shape(shape: tuple[Any, ...]) -> bool:
    """Return whether numpy can make arrays of this shape, also without items."""
    sizes = len(shape) <= MAX_DIMENSIONS and all(type(size) is int and size >= 0 for size in shape)
    return sizes and math.prod(max(size, 1) for size in shape) <= MAX_ITEMS
