"""Check a rollout's transitions, next observations and final observations against the steps that were recorded."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from policies import zeros

from parenv import AsyncWorkerPool
from parenv.envs.episode_statistics import EpisodeTally
from parenv.envs.fitting import Fit
from parenv.envs.stepping import End
from parenv.envs.values import row_writer
from parenv.experience.assembly import Columns, assemble
from parenv.experience.rollout import Rollout
from parenv.memory.layout import Extra, RolloutSpec, SlotSpec, slot_layout
from parenv.memory.spaces import Leaf
from parenv.testing import LedgerEnv
from parenv.worker.writing import RolloutWriter

SETTINGS = settings(max_examples=40)
OBSERVATIONS = (Leaf(("x",), (2,), "<f4"), Leaf(("deep", 0), (), "<i8"), Leaf(("deep", 1)))


class Recorded(NamedTuple):
    """Rollout, and the numbers that its observations and true next observations encode, by row and column."""

    rollout: Rollout
    seen: Any
    followed_by: Any
    ended: Any


def record(ended: Any, widths: list[int], left_out: int = 0) -> Recorded:
    """Record a rollout whose observations encode consecutive numbers, across resets too.

    The rollout has the columns of all workers except the first ``left_out`` ones.
    """
    T, B = ended.shape
    spec = RolloutSpec(T, OBSERVATIONS, (Leaf((), (), "<i8"),), (Extra("value", (), "<f4"),))
    slot = SlotSpec((spec,))
    layout = slot_layout(slot, B, len(widths))
    arrays = layout.arrays(np.zeros(layout.total_bytes, np.uint8))
    seen, followed_by = np.zeros((T + 1, B), int), np.zeros((T, B), int)
    numbers, shares, first = iter(range(1, 10_000)), [], 0
    for position, width in enumerate(widths):
        writer = RolloutWriter(slot, arrays, Columns(position, first, first + width))
        columns = slice(first, first + width)
        write_columns(writer, ended[:, columns], numbers, seen[:, columns], followed_by[:, columns])
        shares.append(writer.columns)
        first += width
    first = sum(widths[:left_out])
    about: dict[str, Any] = {"env_ids": np.arange(10, 10 + B - first), "policy_version": 3, "policy_lag": 1}
    rollout = assemble(spec, arrays[0], shares[left_out:], worker=None, extras=["value"], **about)
    return Recorded(rollout, seen[:, first:], followed_by[:, first:], ended[:, first:])


def write_columns(writer: RolloutWriter, ended: Any, numbers: Iterator[int], seen: Any, followed_by: Any) -> None:
    T, B = ended.shape
    seen[0] = [next(numbers) for _ in range(B)]
    writer.begin(shown(seen[0]))
    for step in range(T):
        writer.write_actions(step, [seen[step] * 10], {"value": seen[step] / 4})
        for column in range(B):
            followed_by[step, column] = seen[step + 1, column] = number = next(numbers)
            if ended[step, column]:
                final = {"x": [float(number), -float(number)], "deep": (number, f"nr {number}")}
                row_writer(OBSERVATIONS, Fit())(writer.finals, len(writer.ends), final)
                writer.ends.append(End(step, column, True, False, 0.25))
                seen[step + 1, column] = next(numbers)
        for block, row in zip(writer.observations[step + 1], shown(seen[step + 1]), strict=True):
            block[:] = row
    writer.rewards[:] = 1
    writer.write_ends(*EpisodeTally(B).add_rollout(writer.rewards, writer.ends))


def shown(numbers: Any) -> list[Any]:
    """Return the leaves of observations that encode these numbers."""
    return [np.stack([numbers, -numbers], -1), numbers, [f"nr {number}" for number in numbers.tolist()]]


def shows(observations: Any, numbers: Any) -> None:
    """Check that nested observations of any number of dimensions encode these numbers."""
    assert isinstance(observations, dict)
    assert isinstance(observations["deep"], tuple)
    np.testing.assert_array_equal(np.asarray(observations["x"])[..., 0], numbers)
    np.testing.assert_array_equal(np.asarray(observations["x"])[..., 1], -np.asarray(numbers))
    np.testing.assert_array_equal(np.asarray(observations["deep"][0]), numbers)
    texts = np.vectorize(lambda number: f"nr {number}", otypes=[object])(numbers) if np.size(numbers) else numbers
    assert observations["deep"][1] == np.asarray(texts).tolist()


@st.composite
def recordings(draw: Callable[[Any], Any]) -> Recorded:
    widths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    T = draw(st.integers(1, 5))
    ended = draw(hnp.arrays(bool, (T, sum(widths)), fill=st.just(False)))
    return record(ended, widths, left_out=draw(st.integers(0, len(widths) - 1)))


@given(recordings())
@SETTINGS
def test_next_observations_are_the_final_ones_where_episodes_ended(recorded: Recorded) -> None:
    rollout, T = recorded.rollout, len(recorded.ended)
    shows(rollout.observations, recorded.seen[:T])
    shows(rollout.last_observations, recorded.seen[T])
    shows(rollout.next_observations(), recorded.followed_by)
    shows(rollout.to("cpu").next_observations(), recorded.followed_by)
    shows(rollout.observations, recorded.seen[:T])


@given(recordings())
@SETTINGS
def test_the_final_index_is_the_position_of_final_observations(recorded: Recorded) -> None:
    rollout = recorded.rollout
    steps, columns = rollout.final_index
    assert sorted(np.transpose([steps, columns]).tolist()) == np.argwhere(recorded.ended).tolist()
    shows(rollout.final_observations, recorded.followed_by[steps, columns])
    assert rollout.episodes.env_ids.tolist() == (columns + 10).tolist()
    assert len(rollout.episodes) == recorded.ended.sum()


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("two_dimensional", [False, True], ids=["[N]", "[N, 1]"])
@given(recordings())
@SETTINGS
def test_next_values_are_the_values_of_next_observations(
    tensors: bool, two_dimensional: bool, recorded: Recorded
) -> None:
    def value(observations: Any) -> Any:
        values = observations["x"][..., 0] / 4
        return values.reshape(-1, 1) if two_dimensional else values

    rollout = recorded.rollout.to("cpu") if tensors else recorded.rollout
    values = rollout.extras["value"]
    before = values.tolist()
    following = rollout.next_values(values, value)
    assert type(following) is type(values)
    np.testing.assert_array_equal(following, recorded.followed_by / 4)
    assert values.tolist() == before


@given(recordings())
@SETTINGS
def test_transitions_are_the_steps_in_time_major_order(recorded: Recorded) -> None:
    T, B = recorded.ended.shape
    for rollout in (recorded.rollout, recorded.rollout.to("cpu")):
        transitions = rollout.transitions()
        assert len(transitions) == rollout.num_steps == T * B
        shows(transitions.observations, recorded.seen[:T].ravel())
        shows(transitions.next_observations, recorded.followed_by.ravel())
        np.testing.assert_array_equal(transitions.actions, recorded.seen[:T].ravel() * 10)
        np.testing.assert_array_equal(transitions.extras["value"], recorded.seen[:T].ravel() / 4)
        np.testing.assert_array_equal(transitions.terminated, recorded.ended.ravel())
        np.testing.assert_array_equal(transitions.env_ids, list(range(10, 10 + B)) * T)


ENDED = np.array([[False, True, False], [False, False, True]])


def arrays_of(rollout: Rollout) -> list[Any]:
    blocks = [rollout.observations, rollout.last_observations, rollout.shifted_observations, rollout.final_observations]
    nested = [part for block in blocks for part in (block["x"], block["deep"][0])]
    return [*nested, rollout.actions, rollout.rewards, rollout.terminated, rollout.truncated, rollout.extras["value"]]


def test_tensors_on_the_cpu_share_the_memory_of_the_arrays() -> None:
    rollout = record(ENDED, [3]).rollout
    for array, tensor in zip(arrays_of(rollout), arrays_of(rollout.to("cpu")), strict=True):
        assert isinstance(tensor, torch.Tensor)
        assert np.shares_memory(array, tensor.numpy())
        assert (tensor.shape, tensor.numpy().dtype) == (array.shape, array.dtype)


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
def test_a_copy_has_memory_of_its_own(tensors: bool) -> None:
    recorded = record(ENDED, [1, 2])
    rollout = recorded.rollout.to("cpu") if tensors else recorded.rollout
    copy = rollout.copy()
    for original, copied in zip(arrays_of(rollout), arrays_of(copy), strict=True):
        assert not np.shares_memory(np.asarray(original), np.asarray(copied))
        original[:] = 0
    rollout.observations["deep"][1][0][0] = "changed"
    shows(copy.observations, recorded.seen[:2])
    shows(copy.next_observations(), recorded.followed_by)
    assert (copy.policy_version, copy.policy_lag, copy.worker) == (3, 1, None)


def test_without_an_end_next_observations_are_a_view() -> None:
    rollout = record(np.zeros((2, 3), bool), [3]).rollout
    assert np.shares_memory(rollout.next_observations()["x"], rollout.observations["x"])
    assert len(rollout.final_observations["x"]) == 0


def test_the_former_name_of_shifted_observations_still_works_with_a_warning() -> None:
    rollout = record(ENDED, [3]).rollout
    with pytest.warns(DeprecationWarning, match="Rollout.successors is now shifted_observations"):
        assert rollout.successors is rollout.shifted_observations


def unread_rollout() -> Rollout:
    """Return a rollout with episode ends whose fields have not been read yet."""
    with AsyncWorkerPool(lambda: LedgerEnv(0), zeros, num_envs=2, num_workers=0, rollout_length=200, seed=0) as pool:
        return next(pool.rollouts())


def test_a_field_is_made_when_it_is_first_read() -> None:
    rollout = unread_rollout()
    assert not {"observations", "ends", "extras"} & set(vars(rollout))
    assert rollout.observations is rollout.observations
    assert "observations" in vars(rollout)
    with pytest.raises(AttributeError, match="'Rollout' object has no attribute 'observation'"):
        rollout.observation  # noqa: B018


@pytest.mark.parametrize("copied", [lambda rollout: pickle.loads(pickle.dumps(rollout)), copy.deepcopy, Rollout.copy])
def test_a_rollout_can_be_copied_before_its_fields_are_read(copied: Any) -> None:
    rollout = unread_rollout()
    other = copied(rollout)
    np.testing.assert_array_equal(other.observations, rollout.observations)
    assert len(rollout.episodes) == len(other.final_index[0]) > 0
    np.testing.assert_array_equal(other.final_index, rollout.final_index)
    np.testing.assert_array_equal(other.next_observations(), rollout.next_observations())
    assert (other.num_steps, other.serial) == (rollout.num_steps, rollout.serial)
