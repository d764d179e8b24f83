"""Check which plain form each value has that is not plain data itself."""

from __future__ import annotations

import datetime
import enum
from collections import OrderedDict, UserDict, deque, namedtuple
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from parenv.errors import NotDataError
from parenv.protocol.data import pack, unpack
from parenv.protocol.plain import as_data, plain_info


class Colour(enum.Enum):
    RED = ("r", 1)


class Level(enum.IntEnum):
    HIGH = 3


class Way(enum.Flag):
    UP = 1
    DOWN = 2


class Word(enum.StrEnum):
    GO = "go"


class Name(str):
    pass


class Count(int):
    pass


class Half(float):
    pass


class ArrayLike:
    """Array that is not a numpy array but can be converted to one, like an array of JAX."""

    dtype = np.dtype(np.float32)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.arange(3, dtype=np.float32)


class UnconvertibleArrayLike(ArrayLike):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("this has no values")


class Nanoseconds(datetime.timedelta):
    """Timedelta as in pandas."""

    def to_timedelta64(self) -> Any:
        return np.timedelta64(5, "ns")


Point = namedtuple("Point", "x y")
PLAIN: dict[str, tuple[Any, Any]] = {
    "enum": (Colour.RED, ("r", 1)),
    "int enum": (Level.HIGH, 3),
    "flag": (Way.UP | Way.DOWN, 3),
    "str enum": (Word.GO, "go"),
    "string of its own": (Name("a"), "a"),
    "integer of its own": (Count(4), 4),
    "float of its own": (Half(0.5), 0.5),
    "set": ({"b", "a", "c"}, ["a", "b", "c"]),
    "mixed set": (frozenset([2, "a"]), ["a", 2]),
    "deque": (deque([1, Level.HIGH]), [1, 3]),
    "range": (range(3), [0, 1, 2]),
    "namedtuple": (Point(1, {2}), (1, [2])),
    "path": (Path("a/b"), "a/b"),
    "datetime": (datetime.datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),
    "date": (datetime.date(2026, 1, 2), "2026-01-02"),
    "timedelta": (datetime.timedelta(seconds=2), np.timedelta64(2_000_000, "us")),
    "timedelta with nanoseconds": (Nanoseconds(), np.timedelta64(5, "ns")),
    "complex": (2 + 1j, np.complex128(2 + 1j)),
    "tensor": (torch.arange(3), np.arange(3)),
    "tensor with gradients": (torch.ones(2, requires_grad=True) * 2, np.full(2, 2, np.float32)),
    "scalar tensor": (torch.tensor(1.5), np.array(1.5, np.float32)),
    "half of a tensor": (torch.ones(2, dtype=torch.bfloat16), np.ones(2, np.float32)),
    "array of another library": (ArrayLike(), np.arange(3, dtype=np.float32)),
    "mapping": (UserDict({"a": Level.HIGH}), {"a": 3}),
    "ordered": (OrderedDict(a={1}), {"a": [1]}),
    "key": ({Level.HIGH: 1, Point(1, 2): 2}, {3: 1, (1, 2): 2}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_value_is_converted_to_its_plain_form(name: str) -> None:
    value, wanted = PLAIN[name]
    got = unpack(*pack(as_data({"in": [value]})))["in"][0]
    assert type(got) is type(wanted)
    np.testing.assert_equal(got, wanted)
    assert getattr(got, "dtype", None) == getattr(wanted, "dtype", None)


def test_plain_data_is_not_converted() -> None:
    for value in (
        1,
        True,
        None,
        "a",
        b"a",
        np.float64(2),
        np.arange(2),
        gym.spaces.Discrete(2),
        np.random.default_rng(1),
    ):
        assert as_data(value) is value
        assert plain_info({"a": {1}, "b": value})[0]["b"] is value


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize("value", [object(), [object()], {"a": object()}, UnconvertibleArrayLike(), ENDLESS, lambda: 0])
def test_a_value_without_a_plain_form_is_refused(value: Any) -> None:
    with pytest.raises(NotDataError, match=r"value(\[[^]]*\])* (is a |must be nested)"):
        as_data(value)


def test_info_values_without_a_plain_form_are_left_out_and_listed() -> None:
    info = {"a": {"b": object(), "c": {1}}, "d": [1, object()], "e": Level.HIGH, object: 1}
    plain, left_out = plain_info(info)
    assert plain == {"a": {"c": [1]}, "e": 3}
    assert left_out == {
        "infos['a']['b']": "infos['a']['b'] is a builtins.object",
        "infos['d']": "infos['d'][1] is a builtins.object",
        f"infos[{object!r}]": "a key of infos is a builtins.type",
    }
