"""Check the leaves of spaces, and that spaces sent as plain data are rebuilt."""

from __future__ import annotations

import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given, settings

from parenv.errors import ConfigurationError, ProtocolError
from parenv.memory.opaque import OpaqueSpace
from parenv.memory.sampling import generators, set_generators
from parenv.memory.spaces import MAX_SPACE_BYTES, Leaf, describe, flatten, leaves, rebuild, unflatten
from parenv.protocol.data import pack, unpack

SETTINGS = settings(max_examples=60)
INT_DTYPES = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


class TiltedBox(spaces.Box):
    """Subclass of Box that is defined by a user."""


class Moods(Space[str]):
    """Custom space that is derived directly from ``Space``."""

    def __init__(self, *moods: str) -> None:
        self.moods = moods
        super().__init__()

    def __repr__(self) -> str:
        return f"Moods{self.moods}"

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return str(self.np_random.choice(self.moods))

    def contains(self, x: Any) -> bool:
        return x in self.moods


def rebuilt(space: Space[Any]) -> Space[Any]:
    return rebuild(unpack(*pack(describe(space))))


@st.composite
def boxes(draw: Callable[[Any], Any]) -> spaces.Box:
    dtype = np.dtype(draw(st.sampled_from([*INT_DTYPES, np.bool_, np.float16, np.float32, np.float64])))
    shape, kind = draw(SHAPES), draw(st.sampled_from(["one bound", "per element", "half open", "open"]))
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    low, high = np.zeros(shape, dtype), np.ones(shape, dtype)
    if kind == "per element" and dtype != np.bool_:
        low, high = (generator.integers(*between, shape).astype(dtype) for between in ((0, 50), (50, 100)))
    if kind in ("half open", "open") and dtype.kind == "f":
        high = np.where(generator.random(shape) < 0.5, np.inf, high).astype(dtype)
        low = np.full(shape, -np.inf, dtype) if kind == "open" else low
    return spaces.Box(low, high, dtype=dtype.type)


@st.composite
def multi_discretes(draw: Callable[[Any], Any]) -> spaces.MultiDiscrete:
    shape = draw(hnp.array_shapes(max_dims=2, max_side=3))
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    nvec, start = (draw(hnp.arrays(dtype, shape, elements=st.integers(*between))) for between in ((1, 9), (-5, 5)))
    return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)


DISCRETES = st.builds(
    spaces.Discrete, st.integers(1, 9), start=st.integers(0, 9), dtype=st.sampled_from(INT_DTYPES)
) | st.builds(spaces.Discrete, st.integers(1, 9), start=st.integers(-9, 0))
MULTI_BINARIES = st.builds(spaces.MultiBinary, st.integers(1, 5) | st.lists(st.integers(1, 3), min_size=2, max_size=3))
TEXTS = st.builds(
    spaces.Text, st.integers(3, 9), min_length=st.integers(0, 3), charset=st.text("abcÄß ", min_size=1).map(frozenset)
)
NODES = boxes() | DISCRETES
GRAPHS = st.builds(spaces.Graph, NODES, st.none() | NODES)
KEYS = st.text("xyzab[']", min_size=1, max_size=3)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    by_key = st.dictionaries(KEYS, inner, max_size=3)
    return (
        st.builds(spaces.Tuple, st.lists(inner, max_size=3))
        | st.builds(spaces.Dict, by_key)
        | st.builds(spaces.Dict, by_key.map(lambda parts: OrderedDict(sorted(parts.items(), reverse=True))))
        | st.builds(spaces.OneOf, st.lists(inner, min_size=1, max_size=3))
        | st.builds(spaces.Sequence, inner, stack=st.booleans())
    )


ANY_SPACE = st.recursive(
    boxes() | DISCRETES | multi_discretes() | MULTI_BINARIES | TEXTS | GRAPHS, nested, max_leaves=6
)


@given(ANY_SPACE)
@SETTINGS
def test_a_rebuilt_space_is_equal_and_has_the_same_leaves(space: Space[Any]) -> None:
    copy = rebuilt(space)
    assert copy == space
    assert repr(copy) == repr(space)
    assert leaves(copy) == leaves(space)
    assert leaves(rebuilt(copy)) == leaves(space)


@given(
    st.recursive(boxes() | DISCRETES | multi_discretes() | MULTI_BINARIES | TEXTS, nested, max_leaves=6),
    st.integers(0, 99),
)
@SETTINGS
def test_unflatten_is_the_inverse_of_flatten(space: Space[Any], seed: int) -> None:
    space.seed(seed)
    value = space.sample()
    of = leaves(space)
    parts = flatten(of, value)
    for leaf, part in zip(of, parts, strict=True):
        assert leaf.dtype is None or (np.shape(part) == leaf.shape and np.asarray(part).dtype == leaf.dtype)
    np.testing.assert_equal(unflatten(of, parts), value)


def test_leaves_come_in_the_order_of_the_space_with_their_paths() -> None:
    space = spaces.Dict(
        OrderedDict(
            z=spaces.Box(-1, 1, (2, 3)), a=spaces.Tuple([spaces.Discrete(4), spaces.Text(3)]), empty=spaces.Dict()
        )
    )
    assert leaves(space) == (
        Leaf(("z",), (2, 3), "<f4"),
        Leaf(("a", 0), (), "<i8"),
        Leaf(("a", 1)),
        Leaf(("empty",)),
    )
    assert [leaf.name for leaf in leaves(space)] == ["['z']", "['a'][0]", "['a'][1]", "['empty']"]
    assert [leaf.integral for leaf in leaves(space)] == [False, True, False, False]
    assert leaves(rebuilt(space)) == leaves(space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(),
        spaces.Tuple([]),
        spaces.Text(3),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2)]),
        Moods("glad"),
    ],
    ids=str,
)
def test_a_space_without_a_fixed_size_is_one_list(space: Space[Any]) -> None:
    assert leaves(space) == (Leaf(()),)
    assert leaves(rebuilt(space)) == (Leaf(()),)


def test_a_subclass_is_treated_as_its_base() -> None:
    space = spaces.Dict(box=TiltedBox(-1, 1, (2,), np.float64))
    assert leaves(space) == (Leaf(("box",), (2,), "<f8"),)
    assert type(rebuilt(space)["box"]) is spaces.Box
    assert rebuilt(space) == spaces.Dict(box=spaces.Box(-1, 1, (2,), np.float64))


def test_a_custom_space_keeps_its_repr_and_its_position() -> None:
    space = spaces.Tuple([Moods("glad", "sad"), spaces.Discrete(2)])
    copy = rebuilt(space)
    assert repr(copy) == "Tuple(Moods('glad', 'sad'), Discrete(2))"
    assert copy[0] == OpaqueSpace("Moods('glad', 'sad')") != OpaqueSpace("Moods('sad',)")
    assert "anything" in copy[0]
    assert leaves(copy) == leaves(space) == (Leaf((0,)), Leaf((1,), (), "<i8"))


def test_a_space_that_occurs_twice_has_one_generator_after_it_is_rebuilt() -> None:
    once = spaces.Discrete(1000)
    space = spaces.Dict(a=spaces.Tuple([once, once]), b=spaces.Box(0, 1, (2,)))
    assert generators(space) == [None] * 5
    space.seed(5)
    copy = rebuilt(space)
    set_generators(copy, unpack(*pack(generators(space))))
    np.testing.assert_equal(copy.sample(), space.sample())


@pytest.mark.parametrize("wrong", [None, [], [None], [None, 0, None], [None, 1], [None, -1], [None, "x"], [True, None]])
def test_generators_that_do_not_fit_a_space_are_a_protocol_error(wrong: Any) -> None:
    with pytest.raises(ProtocolError, match="generator"):
        set_generators(spaces.Tuple([spaces.Discrete(2)]), wrong)


def test_keys_of_a_dict_space_must_be_strings() -> None:
    with pytest.raises(ConfigurationError, match="keys of a Dict space must be strings, got 3"):
        leaves(spaces.Dict({3: spaces.Discrete(2)}))


@pytest.mark.parametrize("tree", [{}, {"a": ()}, {"a": 3}])
def test_flatten_raises_if_the_structure_differs(tree: Any) -> None:
    with pytest.raises((KeyError, IndexError, TypeError)):
        flatten([Leaf(("a", 0))], tree)


def test_a_multi_binary_with_a_shape_of_one_dimension_is_rebuilt() -> None:
    assert rebuilt(spaces.MultiBinary((3,))) == spaces.MultiBinary((3,))


@pytest.mark.parametrize("value", [{0: "a", 1: "b"}, {7: "a"}], ids=str)
def test_unflatten_leaves_a_dict_that_is_a_value_of_a_custom_space_alone(value: Any) -> None:
    assert unflatten(leaves(spaces.Tuple([Moods(), spaces.Discrete(2)])), [value, 1]) == (value, 1)


SMALL, LARGE = np.array(0, "|u1"), np.array(9, "|u1")
STACKED: Any = ["discrete", 2, 0, "<i8"]
for _ in range(31):
    STACKED = ["sequence", STACKED, True]
GRAPHS_OF_GRAPHS: Any = ["discrete", 2, 0, "<i8"]
for _ in range(31):
    GRAPHS_OF_GRAPHS = ["graph", GRAPHS_OF_GRAPHS, None]


@pytest.mark.parametrize(
    "description",
    [
        ["box", SMALL, LARGE, [10**9], "|u1"],
        ["box", SMALL, LARGE, [1 << 31, 1 << 31, 4], "|u1"],
        ["box", SMALL.astype("f8"), LARGE, [MAX_SPACE_BYTES // 8 + 1], "<f8"],
        ["tuple", [["box", SMALL, LARGE, [MAX_SPACE_BYTES // 3], "|u1"]] * 4],
        ["multi_binary", 10**12],
        ["multi_binary", [10**6, 10**6]],
        ["sequence", ["box", SMALL, LARGE, [MAX_SPACE_BYTES // 2 + 1], "|u1"], True],
        ["graph", ["discrete", 2, 0, "<i8"], ["box", SMALL, LARGE, [MAX_SPACE_BYTES // 2 + 1], "|u1"]],
        ["tuple", [["multi_binary", 1]] * 100_000],
        STACKED,
        GRAPHS_OF_GRAPHS,
    ],
    ids=lambda description: str(description)[:60],
)
def test_a_short_description_of_a_huge_space_is_refused(description: Any) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=f"at most {MAX_SPACE_BYTES} bytes"):
            rebuild(description)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 1, (2160, 3840, 3), np.float32),
        spaces.Tuple([spaces.Discrete(2)] * 2000),
        spaces.Sequence(spaces.Sequence(spaces.Sequence(spaces.Discrete(2), stack=True), stack=True), stack=True),
        spaces.Text(1 << 30, charset="".join(map(chr, range(0x4E00, 0x9FFF)))),
        spaces.MultiDiscrete(np.full((300, 300), 5)),
    ],
    ids=["images of 4K", "2000 spaces", "sequences of sequences", "Chinese", "a large MultiDiscrete"],
)
def test_large_spaces_of_users_are_rebuilt(space: Space[Any]) -> None:
    assert rebuilt(space) == space


@pytest.mark.parametrize(
    "description",
    [
        None,
        3,
        "box",
        [],
        ["box"],
        ["no such space"],
        [["box"]],
        ["opaque", 3],
        ["opaque", None],
        ["box", SMALL, LARGE, [-3], "|u1"],
        ["box", SMALL, LARGE, [2, -1000], "|u1"],
        ["box", SMALL, LARGE, [2.5], "|u1"],
        ["box", SMALL, LARGE, "ab", "|u1"],
        ["box", SMALL, LARGE, [2], "O"],
        ["box", SMALL, LARGE, [2], "|V8"],
        ["box", SMALL, LARGE, [2], "<U9"],
        ["box", SMALL, LARGE, [2], "i4,f4"],
        ["box", SMALL, LARGE, [2], 3],
        ["box", np.array("a"), LARGE, [2], "|u1"],
        ["box", np.array(np.datetime64(5, "s")), LARGE, [2], "|u1"],
        ["box", LARGE, SMALL, [2], "|u1"],
        ["discrete", -1, 0, "<i8"],
        ["discrete", 10**400, 0, "<i8"],
        ["discrete", 2, 0, "<f8"],
        ["discrete", "2", 0, "<i8"],
        ["multi_discrete", np.array(["a"]), SMALL, "<i8"],
        ["multi_discrete", [10**30], [0], "<i8"],
        ["multi_discrete", np.array([2.5]), np.array([0]), "<i8"],
        ["multi_binary", 2.5],
        ["multi_binary", -4],
        ["multi_binary", [3, -4]],
        ["multi_binary", "a"],
        ["text", 5, 3, "ab"],
        ["text", 0, 3, 7],
        ["text", 0, 3, ["ab"]],
        ["sequence", ["discrete", 2, 0, "<i8"]],
        ["sequence", 3, True],
        ["graph", 3, None],
        ["one_of", 3],
        ["dict", [1, 2]],
        ["dict", {"a": 1}],
        ["dict", {}, 1],
        ["tuple", {"a": ["discrete", 2, 0, "<i8"]}],
    ],
    ids=str,
)
def test_a_malformed_description_is_a_protocol_error(description: Any) -> None:
    with pytest.raises(ProtocolError, match="malformed description of a space"):
        rebuild(description)
