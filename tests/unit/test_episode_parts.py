"""Check that parts of whole episodes are joined across slots and never mixed with rows of a dead process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parenv.memory.layout import RolloutSpec, SlotSpec, slot_layout
from parenv.memory.spaces import leaves
from parenv.pool.arrival import Block
from parenv.pool.episode_queue import EpisodeParts
from parenv.protocol.messages import Commit

T, SHARE = 4, 2
SPEC = RolloutSpec(T, leaves(spaces.Box(-1, 99, (), np.int64)), leaves(spaces.Discrete(2)), in_parts=True)
LAYOUT = slot_layout(SlotSpec((SPEC,)), SHARE, 1)
BLOCK = Block(LAYOUT, 0, range(1), (), (range(10, 12),), np.array([10, 11]))
BEGINS, GOES_ON, AFTER = "begins", "", "is_after"
Row = tuple[int, int, str]
"""Column, observation and flag."""


def add(
    parts: EpisodeParts, rows: list[Row], generation: int = 0, versions: Any = 0, is_leased: bool = True, void: Any = 0
) -> Any:
    """Add a slot with these rows and return its arrays."""
    (arrays,) = LAYOUT.arrays(np.zeros(LAYOUT.total_bytes, np.uint8))
    flat = {name: array.reshape(-1) for name, array in arrays.items() if name[0] != "finals"}
    table = flat["rows", 0][: len(rows)]
    table["version"] = versions
    ends = 0
    for i, (column, observation, flag) in enumerate(rows):
        table["column"][i] = column
        flat["observations", 0][i] = observation
        if flag:
            table[flag][i] = 1
        if flag == AFTER:
            arrays["finals", 0][ends] = observation
            flat["ends", 0]["counts"][ends] = flat["ends", 0]["known"][ends] = 1
            ends += 1
    flat["ends", 0]["void"][:ends] = void
    arrays["commits", 0]["num_ends"], arrays["commits", 0]["generation"] = ends, generation
    parts.add(BLOCK, arrays, Commit(0, env_steps=len(rows)), is_leased)
    return arrays


def episodes(parts: EpisodeParts, newest: int = 9) -> list[tuple[int, list[int]]]:
    """Take all complete episodes. Return the env_id of each and its observations with the final one."""
    found = []
    while parts.complete:
        rollout: Any = parts.take(newest).rollout
        observations = [*rollout.observations[:, 0].tolist(), *rollout.last_observations.tolist()]
        assert rollout.next_observations()[:, 0].tolist() == observations[1:]
        found.append((int(rollout.env_ids[0]), observations))
    return found


def test_an_episode_is_joined_from_several_slots_beside_others() -> None:
    parts = EpisodeParts(SPEC, 1)
    add(parts, [(0, 1, BEGINS), (1, 5, BEGINS), (1, 6, AFTER), (1, 7, BEGINS)])
    assert episodes(parts) == [(11, [5, 6])]
    add(parts, [(0, 2, GOES_ON), (0, 3, GOES_ON), (1, 8, AFTER)])
    assert episodes(parts) == [(11, [7, 8])]
    add(parts, [])
    add(parts, [(0, 4, AFTER), (0, 5, BEGINS), (0, 6, AFTER)])
    assert episodes(parts) == [(10, [1, 2, 3, 4]), (10, [5, 6])]


def test_rows_of_a_dead_process_are_dropped() -> None:
    parts = EpisodeParts(SPEC, 1)
    add(parts, [(0, 1, BEGINS), (1, 5, BEGINS)])
    add(parts, [(0, 9, AFTER), (1, 6, GOES_ON)], generation=1)
    assert episodes(parts) == []
    add(parts, [(1, 7, BEGINS), (1, 8, AFTER)], generation=1)
    assert episodes(parts) == [(11, [7, 8])]


def test_an_episode_without_an_end_is_dropped_when_the_next_one_begins() -> None:
    parts = EpisodeParts(SPEC, 1)
    add(parts, [(0, 1, BEGINS), (0, 2, GOES_ON)])
    add(parts, [(0, 3, BEGINS), (0, 4, GOES_ON), (0, 5, AFTER)])
    assert episodes(parts) == [(10, [3, 4, 5])]


def test_an_episode_that_is_too_long_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parenv.pool.episode_queue.MAX_EPISODE_STEPS", 4)
    parts = EpisodeParts(SPEC, 1)
    for column, length in ((0, 4), (1, 5)):
        add(parts, [(column, 0, BEGINS), *((column, step, GOES_ON) for step in range(1, length))])
        add(parts, [(column, length, AFTER)])
    assert episodes(parts) == [(10, [0, 1, 2, 3, 4])]
    add(parts, [(1, 7, BEGINS), (1, 8, AFTER)])
    assert episodes(parts) == [(11, [7, 8])]


def test_an_episode_with_a_void_end_is_lost() -> None:
    parts = EpisodeParts(SPEC, 1)
    add(parts, [(1, 1, BEGINS), (1, 2, GOES_ON), (1, 3, AFTER), (1, 4, BEGINS), (1, 5, AFTER)], void=[1, 0])
    assert episodes(parts) == [(11, [4, 5])]
    (lost,) = parts.lost
    assert lost.env_ids.tolist() == [11]


def test_versions_and_lag_are_taken_from_the_rows() -> None:
    parts = EpisodeParts(SPEC, 1)
    add(parts, [(0, 1, BEGINS), (0, 2, GOES_ON)], versions=3)
    add(parts, [(0, 3, GOES_ON), (0, 4, AFTER)], versions=[7, 0])
    rollout: Any = parts.take(9).rollout
    assert rollout.policy_versions.tolist() == [[3], [3], [7]]
    assert (rollout.policy_version, rollout.policy_lag) == (3, 6)


def test_an_episode_is_a_view_if_its_slot_is_leased_and_a_copy_otherwise() -> None:
    for is_leased in (True, False):
        parts = EpisodeParts(SPEC, 1)
        arrays = add(parts, [(0, 1, BEGINS), (0, 2, AFTER)], is_leased=is_leased)
        rollout: Any = parts.take(0).rollout
        assert np.shares_memory(rollout.observations, arrays["observations", 0]) == is_leased


def test_the_times_of_all_slots_are_counted_once() -> None:
    parts = EpisodeParts(SPEC, 1)
    add(parts, [(0, 1, BEGINS)])
    add(parts, [])
    add(parts, [(0, 2, GOES_ON), (0, 3, AFTER), (0, 4, BEGINS), (0, 5, AFTER)])
    first, second = parts.take(0), parts.take(0)
    assert (len(first.commits), len(second.commits)) == (3, 0)
    assert (sum(first.samples), sum(second.samples)) == (2, 1)
    assert len(first.workers) == len(first.replaced) == 3
