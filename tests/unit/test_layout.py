"""Where everything lies in a rollout slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from parenv.memory.layout import ALIGNMENT, Extra, Field, RolloutSpec, SlotLayout, aligned, slot_layout
from parenv.memory.spaces import Leaf

SETTINGS = settings(max_examples=60)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
DTYPES = st.sampled_from(["<f4", "<f8", "<i8", "|u1", "|b1", "<f2"])


@st.composite
def leaf_tuples(draw: Callable[[Any], Any]) -> tuple[Leaf, ...]:
    kinds = draw(st.lists(st.tuples(SHAPES, st.none() | DTYPES), min_size=1, max_size=4))
    return tuple(Leaf((i,), () if dtype is None else shape, dtype) for i, (shape, dtype) in enumerate(kinds))


@st.composite
def extra_tuples(draw: Callable[[Any], Any]) -> tuple[Extra, ...]:
    return tuple(
        Extra(name, draw(SHAPES), draw(DTYPES)) for name in draw(st.lists(st.sampled_from("abc"), unique=True))
    )


SPECS = st.builds(RolloutSpec, st.integers(1, 9), leaf_tuples(), leaf_tuples(), extra_tuples())
WIDTHS = st.tuples(st.integers(1, 5), st.integers(1, 3)).map(lambda pair: (pair[0] * pair[1], pair[1]))


def extent(field: Field) -> tuple[int, int]:
    return field.offset, field.offset + np.dtype(field.dtype).itemsize * int(np.prod(field.shape, dtype=int))


def named(layout: SlotLayout) -> dict[tuple[str, Any], Field]:
    return {field.name: field for field in layout.fields}


@given(SPECS, WIDTHS)
@SETTINGS
def test_fields_are_aligned_and_inside_the_slot_and_do_not_overlap(spec: RolloutSpec, width: tuple[int, int]) -> None:
    layout = slot_layout(spec, *width)
    end = 0
    for field in layout.fields:
        begin, following = extent(field)
        assert begin % ALIGNMENT == 0
        assert begin >= end
        end = following
    assert end <= layout.total_bytes
    assert layout.total_bytes % 4096 == 0
    assert len(named(layout)) == len(layout.fields)


@given(SPECS, WIDTHS, st.integers(0, 99))
@SETTINGS
def test_every_array_keeps_what_was_written_whatever_is_written_to_the_others(
    spec: RolloutSpec, width: tuple[int, int], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    layout = slot_layout(spec, *width)
    memory = bytearray(layout.total_bytes)
    written = {}
    for name, array in layout.arrays(memory).items():
        written[name] = generator.bytes(array.nbytes)
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(written[name], np.uint8)
    assert {name: array.tobytes() for name, array in layout.arrays(memory).items()} == written


@given(SPECS, WIDTHS)
@SETTINGS
def test_the_reserved_part_ends_where_what_only_episode_ends_need_begins(
    spec: RolloutSpec, width: tuple[int, int]
) -> None:
    layout = slot_layout(spec, *width)
    for field in layout.fields:
        begin, end = extent(field)
        if field.name[0] in ("finals", "ends"):
            assert begin >= layout.reserved_bytes
        else:
            assert end <= layout.reserved_bytes


def test_shapes_are_those_of_a_rollout_and_lists_take_no_room() -> None:
    spec = RolloutSpec(
        5,
        observations=(Leaf(("image",), (3, 2), "|u1"), Leaf(("text",)), Leaf(("mass",), (), "<f8")),
        actions=(Leaf((), (4,), "<f4"),),
        extras=(Extra("value", (), "<f4"), Extra("advantage", (2,), "<f8", True)),
    )
    shapes = {name: (field.shape, field.dtype) for name, field in named(slot_layout(spec, 6, 3)).items()}
    commits, ends = shapes.pop(("commits", 0)), shapes.pop(("ends", 0))
    assert (commits[0], ends[0]) == ((3,), (30,))
    assert shapes == {
        ("observations", 0): ((6, 6, 3, 2), "|u1"),
        ("observations", 2): ((6, 6), "<f8"),
        ("actions", 0): ((5, 6, 4), "<f4"),
        ("rewards", 0): ((5, 6), "<f4"),
        ("terminated", 0): ((5, 6), "?"),
        ("truncated", 0): ((5, 6), "?"),
        ("restarted", 0): ((6,), "?"),
        ("resetting", 0): ((6,), "?"),
        ("extras", "value"): ((5, 6), "<f4"),
        ("extras", "advantage"): ((5, 6, 2), "<f8"),
        ("finals", 0): ((30, 3, 2), "|u1"),
        ("finals", 2): ((30,), "<f8"),
    }


@given(SPECS, WIDTHS)
@SETTINGS
def test_the_same_specification_gives_the_same_layout(spec: RolloutSpec, width: tuple[int, int]) -> None:
    assert slot_layout(spec, *width) == slot_layout(spec, *width)


@given(st.integers(0, 1 << 40), st.sampled_from([1, 64, 4096]))
@SETTINGS
def test_aligned_rounds_up_by_less_than_one_step(size: int, to: int) -> None:
    assert aligned(size, to) % to == 0
    assert 0 <= aligned(size, to) - size < to
