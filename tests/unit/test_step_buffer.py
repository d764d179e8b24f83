"""Check the layout of the step buffer, and that several views share its memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parenv.memory.spaces import leaves
from parenv.memory.step_buffer import ITEM_BYTES, StepBuffer, StepBufferSpec

OBSERVED = spaces.Dict(a=spaces.Box(0, 1, (2, 3), np.float32), t=spaces.Text(3), d=spaces.Discrete(4))
ACTED = spaces.Tuple([spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(3)])


def spec(observed: Any = OBSERVED, acted: Any = ACTED, num_envs: int = 5) -> StepBufferSpec:
    return StepBufferSpec(num_envs, leaves(observed), leaves(acted), 64)


def test_fields_do_not_overlap_and_fit_into_the_declared_bytes() -> None:
    fields, total = spec().fields()
    spans = sorted((f.offset, f.offset + int(np.prod(f.shape)) * np.dtype(f.dtype).itemsize) for f in fields)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert spans[0][0] >= 0
    assert spans[-1][1] <= total
    assert total % 4096 == 0


@pytest.mark.parametrize("offset", [0, 4096])
def test_writes_are_visible_in_another_view_and_change_nothing_else(offset: int) -> None:
    memory = np.zeros(offset + spec().fields()[1], np.uint8)
    one, other = StepBuffer(spec(), memory, offset), StepBuffer(spec(), memory, offset)
    arrays = [name for name, value in vars(one).items() if isinstance(value, np.ndarray)]
    assert set(arrays) >= {"rewards", "terminated", "truncated", "requested", "finished", "info_kinds"}
    for name in arrays:
        getattr(one, name)[2] = 1
        assert (getattr(other, name)[2] == 1).all()
        getattr(one, name)[2] = 0
        assert not memory.any()


def test_values_without_a_fixed_size_have_no_array() -> None:
    step_buffer = StepBuffer(spec(), np.zeros(spec().fields()[1], np.uint8))
    assert [None if rows is None else (rows.shape, rows.dtype.str) for rows in step_buffer.observations] == [
        ((5, 2, 3), "<f4"),
        None,
        ((5,), "<i8"),
    ]


def test_actions_may_be_stored_in_other_dtypes() -> None:
    memory = np.zeros(spec().fields()[1], np.uint8)
    one, other = StepBuffer(spec(), memory), StepBuffer(spec(), memory)
    assert (one.action_bytes, one.one_action) == ([ITEM_BYTES] * 2, False)
    for step_buffer in (one, other):
        step_buffer.view_actions(["<f8", "|i1"])
    one.actions[0][:], one.actions[1][:] = 0.1, 2
    assert (other.actions[0] == 0.1).all()
    assert other.actions[1].tolist() == [2] * 5
    one.actions[1][3], other.actions[1][4] = 1, 7
    one.view_actions(["<f4", "<i8"])
    assert [row.view(np.int8)[0] for row in one.actions[1].reshape(5, 1)] == [2, 2, 2, 1, 7]


def test_actions_may_be_empty() -> None:
    step_buffer = StepBuffer(spec(acted=spaces.Box(0, 1, (0, 2), np.float32)), np.zeros(1 << 16, np.uint8))
    assert step_buffer.actions[0].shape == (5, 0, 2)


def test_a_space_that_is_one_array_is_one_action() -> None:
    assert StepBuffer(spec(acted=spaces.Discrete(2)), np.zeros(1 << 16, np.uint8)).one_action
    assert not StepBuffer(spec(acted=spaces.Text(2)), np.zeros(1 << 16, np.uint8)).one_action
