"""Check the layout of the arrays in a rollout slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from parenv.memory.layout import ALIGNMENT, Extra, Field, RolloutSpec, SlotLayout, SlotSpec, aligned, slot_layout
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


GROUPS = st.builds(RolloutSpec, st.integers(1, 9), leaf_tuples(), leaf_tuples(), extra_tuples())


def slot_spec(rows: RolloutSpec, agents: list[tuple[str, ...]]) -> SlotSpec:
    """Return the layout for one policy, or for two named policies if there are groups of agents."""
    groups = (rows, *(replace(rows, agents=names) for names in agents))
    return SlotSpec(groups, ("chaser", "runner")) if agents else SlotSpec(groups)


SPECS = st.builds(slot_spec, GROUPS, st.sampled_from([[], [("a",)], [("a",), ("b", "c")]]))
WIDTHS = st.tuples(st.integers(1, 5), st.integers(1, 3)).map(lambda pair: (pair[0] * pair[1], pair[1]))


def extent(field: Field) -> tuple[int, int]:
    return field.offset, field.offset + np.dtype(field.dtype).itemsize * int(np.prod(field.shape, dtype=int))


def fields_of(layout: SlotLayout) -> list[Field]:
    return sorted((field for group in layout.groups for field in group), key=lambda field: field.offset)


@given(SPECS, WIDTHS)
@SETTINGS
def test_fields_are_aligned_and_inside_the_slot_and_do_not_overlap(spec: SlotSpec, width: tuple[int, int]) -> None:
    layout = slot_layout(spec, *width)
    end = 0
    for field in fields_of(layout):
        begin, following = extent(field)
        assert begin % ALIGNMENT == 0
        assert begin >= end
        end = following
    assert end <= layout.total_bytes
    assert layout.total_bytes % 4096 == 0
    assert all(len({field.name for field in group}) == len(group) for group in layout.groups)


@given(SPECS, WIDTHS, st.integers(0, 99))
@SETTINGS
def test_writing_to_an_array_does_not_change_the_others(spec: SlotSpec, width: tuple[int, int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    layout = slot_layout(spec, *width)
    memory = bytearray(layout.total_bytes)
    written = []
    for array in (array for group in layout.arrays(memory) for array in group.values()):
        written.append(generator.bytes(array.nbytes))
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(written[-1], np.uint8)
    assert [array.tobytes() for group in layout.arrays(memory) for array in group.values()] == written


@given(SPECS, WIDTHS)
@SETTINGS
def test_fields_of_episode_ends_follow_the_reserved_part(spec: SlotSpec, width: tuple[int, int]) -> None:
    layout = slot_layout(spec, *width)
    for field in fields_of(layout):
        begin, end = extent(field)
        if field.name[0] in ("finals", "ends", "numbers"):
            assert begin >= layout.reserved_bytes
        else:
            assert end <= layout.reserved_bytes


def test_fields_have_the_shapes_of_a_rollout_and_lists_take_no_memory() -> None:
    spec = RolloutSpec(
        5,
        observations=(Leaf(("image",), (3, 2), "|u1"), Leaf(("text",)), Leaf(("mass",), (), "<f8")),
        actions=(Leaf((), (4,), "<f4"),),
        extras=(Extra("value", (), "<f4"), Extra("advantage", (2,), "<f8", True)),
    )
    (group,) = slot_layout(SlotSpec((spec,)), 6, 3).groups
    shapes = {field.name: (field.shape, field.dtype) for field in group}
    commits, ends, in_progress = (shapes.pop((name, 0)) for name in ("commits", "ends", "open"))
    assert (commits[0], ends[0], in_progress[0]) == ((3,), (30,), (6,))
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


def test_named_policies_add_policies_to_agents_and_versions_to_environments() -> None:
    group = RolloutSpec(5, (), ())
    alone, envs, agents = (
        {field.name[0]: (field.shape, field.dtype) for field in fields}
        for spec in (
            SlotSpec((group,)),
            SlotSpec((group, replace(group, agents=("a", "b"))), ("chaser", "runner", "shy")),
        )
        for fields in slot_layout(spec, 6, 3).groups
    )
    assert envs.keys() - agents.keys() == {"open", "versions"}
    assert envs["versions"] == ((3, 3), "<i8")
    assert {name: agents[name] for name in agents.keys() - alone.keys()} == {
        "policies": ((5, 12), "<i4"),
        "assigned": ((12,), "<i4"),
        "first_versions": ((12,), "<i8"),
        "numbers": ((60,), "<i8"),
    }


@given(SPECS, WIDTHS)
@SETTINGS
def test_the_same_specification_gives_the_same_layout(spec: SlotSpec, width: tuple[int, int]) -> None:
    assert slot_layout(spec, *width) == slot_layout(spec, *width)


@given(st.integers(0, 1 << 40), st.sampled_from([1, 64, 4096]))
@SETTINGS
def test_aligned_rounds_up_by_less_than_one_step(size: int, to: int) -> None:
    assert aligned(size, to) % to == 0
    assert 0 <= aligned(size, to) - size < to
