"""Check that plain data is unpacked as it was packed, and that other values and malformed bytes are refused."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import sys
import warnings
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import GraphInstance
from hypothesis import given, settings

from parenv.errors import NotDataError, ProtocolError
from parenv.protocol.data import MAX_DEPTH, MAX_INTEGER_DIGITS, pack, unpack

SETTINGS = settings(max_examples=80)
DTYPES = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(endianness="?", sizes=(64, 128))
    | hnp.byte_string_dtypes(max_len=4)
    | hnp.unicode_string_dtypes(max_len=4)
    | hnp.datetime64_dtypes()
    | hnp.timedelta64_dtypes()
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
SCALARS = hnp.arrays(DTYPES, ()).map(lambda array: array[()])
PLAIN = st.none() | st.booleans() | st.integers(-(1 << 100), 1 << 100) | st.floats() | st.text() | st.binary()
KEYS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS |= st.tuples(KEYS, KEYS)
VALUES = st.recursive(
    PLAIN | ARRAYS | SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.builds(GraphInstance, ARRAYS, st.none() | ARRAYS, st.none() | ARRAYS)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Return whether two values have equal types, structure and bits. NaN payloads of Python floats may differ."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    return repr(one) == repr(other)


@given(VALUES)
@SETTINGS
def test_a_packed_value_is_unpacked_unchanged(value: Any) -> None:
    text, buffers = pack(value)
    assert same(unpack(text, buffers), value)
    assert same(unpack(memoryview(text), [memoryview(bytes(buffer)) for buffer in buffers]), value)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((0, 3), np.float32),
        np.array(3.5),
        np.float16("nan"),
        np.str_(""),
        np.arange(12).reshape(3, 4).T[::2],
        {"tuple": [1], "array": {"bytes": 0}},
        {(1, (None, "a")): float("nan"), True: -0.0, b"\xff": float("-inf")},
        "\ud800\0",
    ],
    ids=repr,
)
def test_an_unusual_value_is_unpacked_unchanged(value: Any) -> None:
    assert same(unpack(*pack(value)), value)


def test_similar_types_are_unpacked_as_the_plain_type() -> None:
    assert same(unpack(*pack(collections.OrderedDict(b=1, a=2))), {"b": 1, "a": 2})
    assert same(unpack(*pack(bytearray(b"ab"))), b"ab")
    assert same(unpack(*pack(np.ma.masked_array([1, 2]))), np.array([1, 2]))


def test_unpacked_arrays_are_read_only_views_of_the_buffers() -> None:
    text, (buffer,) = pack(np.arange(5))
    array = unpack(text, [buffer])
    assert np.shares_memory(array, np.frombuffer(buffer, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.array([-1.0, 0]), np.array([1, np.inf]), dtype=np.float64),
        spaces.Dict(a=spaces.Discrete(3, start=-1), b=spaces.Tuple([spaces.MultiBinary((2, 2)), spaces.Text(3)])),
        spaces.Sequence(spaces.MultiDiscrete([2, 3]), stack=True),
        spaces.Graph(spaces.Box(0, 1, (2,)), None),
        spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, ())]),
    ],
    ids=repr,
)
def test_an_unpacked_space_is_equal(space: Any) -> None:
    found = unpack(*pack({"space": space}))["space"]
    assert type(found) is type(space)
    assert found == space


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_an_unpacked_random_generator_continues_the_sequence(kind: str) -> None:
    generator = np.random.Generator(getattr(np.random, kind)(3))
    generator.integers(9, size=5, dtype=np.int32)
    found = unpack(*pack((generator,)))[0]
    assert found.bytes(64) == generator.bytes(64)
    assert found.integers(9, size=5, dtype=np.int32).tolist() == generator.integers(9, size=5, dtype=np.int32).tolist()


@pytest.mark.parametrize("text", ['{"generator":{"dict":[["bit_generator","os.system"]]}}', '{"space":["box",1]}'])
def test_a_malformed_space_or_generator_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="malformed data in a message"):
        unpack(text.encode(), [])


class Word(str):
    __slots__ = ()


Point = collections.namedtuple("Point", "x")


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (object(), "value is a builtins.object"),
        ({"a": [1, (2, {"b": {3}})]}, "value['a'][1][1]['b'] is a builtins.set"),
        ([Word("a")], f"value[0] is a {__name__}.Word"),
        (Point(1), f"value is a {__name__}.Point"),
        ({"f": len}, "value['f'] is a builtins.builtin_function_or_method"),
        ({"e": ValueError()}, "value['e'] is a builtins.ValueError"),
        ({frozenset(): 1}, "value.key is a builtins.frozenset"),
        (1j, "value is a builtins.complex"),
        (GraphInstance([object()], None, None), "value.nodes[0] is a builtins.object"),
        ([np.array([None])], "value[0] is an array of dtype object"),
        ((np.zeros(1, "i4,f4"),), "value[0] is an array of dtype [('f0', '<i4'), ('f1', '<f4')]"),
        ({"t": np.array(["a"], np.dtypes.StringDType())}, "value['t'] is an array of dtype StringDType()"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_values_are_refused_with_their_path(value: Any, where: str) -> None:
    with pytest.raises(NotDataError) as caught:
        pack(value)
    assert str(caught.value).startswith(where)
    assert "which is not plain data" in str(caught.value)


def test_a_value_nested_too_deeply_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotDataError, match=rf"value(\[0\]){{{MAX_DEPTH + 1}}} must be nested at most {MAX_DEPTH} deep"):
        pack(value)


def test_a_value_of_the_maximum_depth_is_unpacked_unchanged() -> None:
    value: Any = 1
    for level in range(MAX_DEPTH):
        value = (value,) if level % 2 else {"k": value}
    assert same(unpack(*pack(value)), value)


def test_an_integer_too_large_for_json_is_refused_like_any_other_value() -> None:
    with pytest.raises(NotDataError, match=r"value\[0\]"):
        pack([10**5000])


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 1 << 70)
    | st.floats()
    | st.sampled_from(["<f4", "O", "|V8", "<U9", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["tuple", "dict", "bytes", "graph", "array", "scalar", "x"]), inner, max_size=2
        )
    ),
    max_leaves=8,
)


def unpacks_or_refuses(text: bytes, buffers: list[bytes]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy deprecates some of the generated dtypes.
        with contextlib.suppress(ProtocolError):
            unpack(text, buffers)


@given(st.binary(max_size=60), st.lists(st.binary(max_size=9), max_size=2))
@SETTINGS
def test_random_bytes_raise_nothing_but_protocol_errors(text: bytes, buffers: list[bytes]) -> None:
    unpacks_or_refuses(text, buffers)


@given(TREES, st.lists(st.binary(max_size=9), max_size=2))
@SETTINGS
def test_tags_in_disorder_raise_nothing_but_protocol_errors(tree: Any, buffers: list[bytes]) -> None:
    unpacks_or_refuses(json.dumps(tree).encode(), buffers)


@given(VALUES, st.data())
@SETTINGS
def test_flipped_bits_and_truncation_raise_nothing_but_protocol_errors(value: Any, data: Any) -> None:
    text, buffers = pack(value)
    broken = bytearray(text)
    broken[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    unpacks_or_refuses(bytes(broken), [bytes(buffer) for buffer in buffers])
    unpacks_or_refuses(text[: data.draw(st.integers(0, len(text)))], [bytes(buffer)[:-1] for buffer in buffers])
    unpacks_or_refuses(text, [bytes(buffer) for buffer in buffers[1:]])


@pytest.mark.parametrize(
    "text",
    [
        '{"array":["O",[1],0]}',
        '{"scalar":["|O",[],0]}',
        '{"array":["<f4",[1000000000000000000000000000000],0]}',
        '{"array":["<f4",[3],0]}',
        '{"array":["<f4",[2]]}',
        '{"array":["(9,9)f4",[2],0]}',
        '{"array":["<U99999999999",[1],0]}',
        '{"bytes":7}',
        '{"bytes":1e999}',
        '{"dict":[[[1],2]]}',
        '{"graph":[1]}',
        '{"tuple":3}',
        '{"pickle":"gASVBAAAAAAAAABLAS4="}',
        '{"tuple":[],"dict":[]}',
        "{}",
        '{"array":["|V8",[1],0]}',
        '{"array":["T",[8],0]}',
        '{"array":["a8",[1],0]}',
        '{"array":["f8",[1],0]}',
        '{"array":["i4,f4",[1],0]}',
        '{"array":["<i8",[true],0]}',
        '{"array":["<i8",[-1],0]}',
        '{"array":["<i4",[-7],0]}',
        '{"array":["<i8","",0]}',
        '{"array":["<i8",1,0]}',
        '{"array":["<i8",[1],-1]}',
        '{"array":["<i8",[1],1]}',
        '{"array":["<i8",[1],[]]}',
        '{"scalar":["<i8",[1],0]}',
        '{"bytes":-1}',
        '{"tuple":"ab"}',
        '{"tuple":{"bytes":0}}',
        '{"dict":["abc"]}',
        '{"dict":{"abc":1}}',
        '{"dict":[[1,2],[1,3]]}',
        "[" * 100_000,
        '{"tuple":[' * 300 + "]}" * 300,
        "1" * 5000,
        "",
        "\udcff",
    ],
    ids=lambda text: text[:30],
)
def test_malformed_data_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="malformed data in a message"):
        unpack(text.encode(errors="surrogateescape"), [bytes(8)])


@pytest.mark.parametrize(
    ("text", "buffers"),
    [
        ('[{"bytes":0},{"bytes":0}]', 1),
        ('[{"array":["|u1",[8],0]},{"array":["|u1",[8],0]}]', 1),
        ('[{"array":["|u1",[8],1]},{"bytes":0}]', 2),
        ('[{"bytes":0}]', 2),
        ("[]", 1),
    ],
)
def test_a_buffer_that_is_not_taken_once_and_in_order_is_refused(text: str, buffers: int) -> None:
    with pytest.raises(ProtocolError, match="buffer"):
        unpack(text.encode(), [bytes(8)] * buffers)


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1])
@pytest.mark.parametrize(
    ("before", "after"), [("[", "]"), ('{"tuple":[', "]}"), ('{"dict":[[1,', "]]}")], ids=["list", "tuple", "dict"]
)
def test_the_maximum_depth_is_the_same_for_packing_and_unpacking(before: str, after: str, levels: int) -> None:
    text = (before * levels + "[1]" + after * levels).encode()
    if levels <= MAX_DEPTH:
        assert pack(unpack(text, [])) == (text, [])
    else:
        with pytest.raises(ProtocolError, match=f"nested at most {MAX_DEPTH} deep"):
            unpack(text, [])


def test_the_largest_integer_can_be_packed_and_unpacked() -> None:
    value = int("9" * MAX_INTEGER_DIGITS)
    assert unpack(*pack([value, -value])) == [value, -value]
    with pytest.raises(NotDataError, match=rf"at most {MAX_INTEGER_DIGITS} digits"):
        pack([value + 1])


def test_keys_made_to_have_the_same_hash_are_refused() -> None:
    period = sys.hash_info.modulus
    text, buffers = pack({period * i: 0 for i in range(1, 2000)})
    with pytest.raises(ProtocolError, match="same hash"):
        unpack(text, buffers)


def test_cells_of_a_grid_are_accepted_as_keys_although_many_have_the_same_hash() -> None:
    values = dict.fromkeys(itertools.product(range(-2, 3), repeat=6), 1.5)
    assert unpack(*pack(values)) == values


GENERATORS = {name: np.random.Generator(getattr(np.random, name)(3)) for name in ("MT19937", "Philox")}


@pytest.mark.parametrize("position", [-1, -(1 << 31), 625, 1 << 20, 1 << 40, 0.5, None, [1]])
@pytest.mark.parametrize("name", GENERATORS)
def test_a_random_generator_that_would_read_outside_its_memory_is_refused(name: str, position: Any) -> None:
    state = dict(GENERATORS[name].bit_generator.state)
    if name == "Philox":
        state["buffer_pos"] = position
    else:
        state["state"] = {**state["state"], "pos": position}
    text, buffers = pack(state)
    with pytest.raises(ProtocolError, match="malformed data"):
        unpack(b'{"generator":' + text + b"}", buffers)


def test_a_scalar_with_invalid_characters_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="malformed data in a message"):
        unpack(b'{"scalar":["<U1",[],0]}', [b"\xff\xff\xff\xff"])
