"""Check that one worker's columns of a slot are written, and the statistics of episodes across rollouts."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from parenv.envs.episode_statistics import EpisodeTally
from parenv.envs.stepping import End
from parenv.experience.assembly import Columns
from parenv.memory.layout import Extra, RolloutSpec, SlotSpec, slot_layout
from parenv.memory.spaces import Leaf
from parenv.worker.writing import RolloutWriter

SPEC = RolloutSpec(
    3,
    observations=(Leaf(("a",), (2,), "<f4"), Leaf(("text",))),
    actions=(Leaf((0,), (), "<i8"), Leaf((1,))),
    extras=(Extra("value", (), "<f4"), Extra("advantage", (2,), "<f8", True)),
)


def slow_statistics(rewards: Any, ended: Any) -> list[list[tuple[float, int]]]:
    """Return the return and length of each ended episode, by column, counted step by step."""
    columns = []
    for column in range(rewards.shape[1]):
        total, length, statistics = 0.0, 0, []
        for step in range(rewards.shape[0]):
            total, length = total + float(rewards[step, column]), length + 1
            if ended[step, column]:
                statistics.append((total, length))
                total, length = 0.0, 0
        columns.append(statistics)
    return columns


@given(st.data(), st.integers(1, 3), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.floats(0, 1))
@settings(max_examples=80)
def test_returns_and_lengths_are_counted_across_rollouts(
    data: Any, num_envs: int, rollout_lengths: list[int], often: float
) -> None:
    shape = (sum(rollout_lengths), num_envs)
    ended = data.draw(hnp.arrays(bool, shape))
    rewards = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    episodes, got, first = EpisodeTally(num_envs), [[] for _ in range(num_envs)], 0
    for length in rollout_lengths:
        part = slice(first, first + length)
        ends = [End(int(step), int(column), True, False, 0.0) for step, column in np.argwhere(ended[part])]
        for (_, column, *_), statistics in zip(
            ends, zip(*episodes.add_rollout(rewards[part], ends), strict=True), strict=True
        ):
            got[column].append(statistics)
        first += length
    for column, expected in zip(got, slow_statistics(rewards, ended), strict=True):
        assert [length for _, length in column] == [length for _, length in expected]
        np.testing.assert_allclose([total for total, _ in column], [total for total, _ in expected], atol=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("rollout_length", [2, 8])
def test_an_extreme_reward_does_not_change_later_episodes(bad: float, rollout_length: int) -> None:
    rewards = np.ones((8, 1), np.float32)
    rewards[0] = bad
    episodes, totals = EpisodeTally(1), []
    for first in range(0, 8, rollout_length):
        ends = [End(step, 0, True, False, 0.0) for step in range(1, rollout_length, 2)]
        totals += episodes.add_rollout(rewards[first : first + rollout_length], ends)[0].tolist()
    assert totals[1:] == [2.0, 2.0, 2.0]


def make_slot(shares: list[Columns]) -> tuple[Any, list[RolloutWriter]]:
    slot = SlotSpec((SPEC,))
    layout = slot_layout(slot, shares[-1].stop, len(shares))
    arrays = layout.arrays(np.zeros(layout.total_bytes, np.uint8))
    return arrays[0], [RolloutWriter(slot, arrays, share) for share in shares]


def rows(batch: int, number: float) -> list[Any]:
    return [np.full((batch, 2), number, np.float32), [f"text {number}"] * batch]


def fill(writer: RolloutWriter, batch: int, number: int) -> None:
    """Write everything that a worker writes, with the same number as each value."""
    writer.begin(rows(batch, number))
    for step in range(3):
        writer.write_actions(step, [np.full(batch, number), ["go"] * batch], {"value": np.full(batch, number)})
        for block, row in zip(writer.observations[step + 1], rows(batch, number), strict=True):
            block[:] = row
    writer.rewards[:] = number
    writer.ends.append(End(1, 0, True, False, 0.5))
    writer.finals[0][0] = number
    writer.finals[1].append("final")
    writer.write_extras({"advantage": np.full((3, batch, 2), number)})
    writer.write_ends([7.5], [4])
    writer.stamp(policy_version=number, sequence=number)


def test_each_worker_writes_its_own_columns_and_no_others() -> None:
    arrays, (left, right) = make_slot([Columns(0, 0, 2), Columns(1, 2, 5)])
    fill(left, 2, 1)
    before = {name: array.copy() for name, array in arrays.items()}
    fill(right, 3, 2)
    for name in ("observations", "actions", "rewards", "terminated"):
        np.testing.assert_array_equal(arrays[name, 0][:, :2], before[name, 0][:, :2])
    assert arrays["rewards", 0].tolist() == [[1, 1, 2, 2, 2]] * 3
    assert arrays["observations", 0][..., 0].tolist() == [[1, 1, 2, 2, 2]] * 4
    assert arrays["actions", 0].tolist() == [[1, 1, 2, 2, 2]] * 3
    assert arrays["extras", "value"].tolist() == [[1, 1, 2, 2, 2]] * 3
    assert arrays["extras", "advantage"][..., 1].tolist() == [[1, 1, 2, 2, 2]] * 3
    assert np.argwhere(arrays["terminated", 0]).tolist() == [[1, 0], [1, 2]]
    assert arrays["finals", 0][:, 0].tolist() == [1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]
    commits = arrays["commits", 0]
    assert (commits["sequence"].tolist(), commits["policy_version"].tolist(), commits["num_ends"].tolist()) == (
        [1, 2],
        [1, 2],
        [1, 1],
    )


def test_ends_are_recorded_with_their_column_in_the_slot() -> None:
    arrays, (_, right) = make_slot([Columns(0, 0, 2), Columns(1, 2, 5)])
    fill(right, 3, 2)
    assert right.end_records().tolist() == [(1, 2, 4, 7.5, 0.5, 1, 0, 0, 1, 0)]
    assert arrays["ends", 0][6].tolist() == (1, 2, 4, 7.5, 0.5, 1, 0, 0, 1, 0)


def test_values_without_a_fixed_size_are_sent_with_the_columns() -> None:
    _, (writer,) = make_slot([Columns(0, 0, 2)])
    fill(writer, 2, 3)
    assert writer.columns.objects == {
        ("observations", 1): [["text 3"] * 2] * 4,
        ("actions", 1): [["go"] * 2] * 3,
        ("finals", 1): ["final"],
    }


def test_a_new_rollout_begins_without_earlier_ends_and_values() -> None:
    arrays, (writer,) = make_slot([Columns(0, 0, 2)])
    fill(writer, 2, 3)
    before = writer.columns.objects
    writer.begin(rows(2, 9))
    writer.write_ends([], [])
    assert not arrays["terminated", 0].any()
    assert (len(writer.ends), len(writer.end_records()), int(arrays["commits", 0]["num_ends"][0])) == (0, 0, 0)
    assert writer.columns.objects["observations", 1] == [["text 9"] * 2] + [[None] * 2] * 3
    assert before["observations", 1][0] == ["text 3"] * 2
