"""Conversion of values to plain data, such as of an ``Enum``, a set or a tensor, before a worker sends them."""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance

from parenv.errors import NotDataError
from parenv.protocol.data import MAX_DEPTH, is_data

_MICROSECOND = datetime.timedelta(microseconds=1)
_WITHOUT_NUMPY = ("bfloat16", "float8")
"""Beginnings of the names of float dtypes that numpy does not have. float32 can represent all of their values."""


def as_data(value: Any) -> Any:
    """Return a value that a worker can send: the value itself, or its plain form.

    Raises:
        NotDataError: The value has no plain form.

    >>> import pathlib
    >>> as_data({"path": pathlib.PurePosixPath("a/b"), "seen": {3, 1}, "z": 1j})
    {'path': 'a/b', 'seen': [1, 3], 'z': np.complex128(1j)}
    """
    return value if is_data(value) else _plain(value, "value", 0, None)


def plain_info(info: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[str, str]]:
    """Return the plain form of an info.

    Returns:
        The info without the values that have no plain form, and a dict that describes those by their place, such as
        ``infos['a']['b']``.
    """
    left_out: dict[str, str] = {}
    return _plain_dict(info, "infos", 0, left_out), left_out


def _plain(value: Any, where: str, depth: int, left_out: dict[str, str] | None) -> Any:
    match value:
        case Mapping():
            return _plain_dict(value, where, depth, left_out)
        case list() | deque() | range():
            return _plain_list(value, where, depth)
        case tuple():
            of_each = _plain_list(value, where, depth)
            return GraphInstance(*of_each) if isinstance(value, GraphInstance) else tuple(of_each)
        case set() | frozenset():
            return _in_order(_plain_list(value, where, depth))
        case int() | float() | str():
            # An instance of a subclass, such as an IntEnum, becomes a number or text of the base class.
            if isinstance(value, bool | np.generic):
                return value
            value = next(base(value) for base in (int, float, str) if isinstance(value, base))
            if is_data(value):
                return value
            raise NotDataError(f"{where} is an integer of too many digits")
        case complex():
            return np.complex128(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            # A Timedelta of pandas has nanoseconds.
            if hasattr(value, "to_timedelta64"):
                return value.to_timedelta64()
            # numpy converts a timedelta of more than 292,000 years to another one without an error.
            return np.timedelta64(value // _MICROSECOND, "us")
        case PurePath():
            return str(value)
        case Enum():
            return _inner(value.value, where, depth)
    if is_data(value):
        return value
    if hasattr(type(value), "__array__") and (array := _array(value)) is not None:
        return array
    raise NotDataError(f"{where} is a {_name(value)}")


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _array(value: Any) -> Any:
    """Return an array or tensor of any library as a numpy array of numbers, or ``None``."""
    try:
        value = value.detach().cpu() if hasattr(value, "detach") else value
        name = str(value.dtype).rpartition(".")[2]
        if name.startswith(_WITHOUT_NUMPY):
            value = value.float() if hasattr(value, "float") else value.astype(np.float32)
        array = np.asarray(value)
    except Exception:
        return None
    return array if is_data(array) else None


def _plain_dict(value: Any, where: str, depth: int, left_out: dict[str, str] | None) -> dict[Any, Any]:
    found = {}
    for key, item in value.items():
        place = f"{where}[{key!r}]"
        try:
            found[_inner(key, f"a key of {where}", depth)] = _inner(item, place, depth, left_out)
        except Exception as error:
            if left_out is None:
                raise
            raised = f"{place} is a {_name(item)} whose conversion raised {type(error).__name__}: {error}"
            left_out[place] = str(error) if isinstance(error, NotDataError) else raised
    return found


def _plain_list(value: Iterable[Any], where: str, depth: int) -> list[Any]:
    return [_inner(item, f"{where}[{i}]", depth) for i, item in enumerate(value)]


def _in_order(items: list[Any]) -> list[Any]:
    """Return the items of a set in an order that is the same in every process."""
    try:
        return sorted(items)
    except Exception:
        return sorted(items, key=repr)


def _inner(value: Any, where: str, depth: int, left_out: dict[str, str] | None = None) -> Any:
    if depth == MAX_DEPTH:
        raise NotDataError(f"{where} must be nested at most {MAX_DEPTH} deep")
    return _plain(value, where, depth + 1, left_out)
