"""Check the reasons for which episodes are lost, if workers die while their rollouts wait to be yielded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parenv.memory.layout import OPEN_DTYPE
from parenv.pool.arrival import Block
from parenv.pool.episodes_in_progress import EpisodesInProgress
from parenv.protocol.messages import Commit

NUM_ENVS = 2


class Rollouts:
    """Rollouts of one worker, each with an episode in progress in both sub-environments."""

    def __init__(self) -> None:
        self.in_progress = EpisodesInProgress(NUM_ENVS, 0)
        span: Any = SimpleNamespace(first=0, stop=NUM_ENVS)
        envs = range(NUM_ENVS)
        self._block = Block(SimpleNamespace(), 0, range(1), (span,), (envs,), np.arange(NUM_ENVS))  # type: ignore[arg-type]

    def committed(self, sequence: int, replaced: Any = ()) -> Commit:
        """Hear that a rollout is complete."""
        self.in_progress.committed(0, sequence)
        return Commit(sequence, replaced=list(replaced))

    def take(self, commit: Commit, restarted: list[bool]) -> list[tuple[int, str]]:
        """Take a rollout; return env_id and reason of each episode that was lost before it."""
        in_progress = np.array([(1.0, commit.sequence, 0.1, 0)] * NUM_ENVS, OPEN_DTYPE)
        self.in_progress.note(self._block, {("open", 0): in_progress, ("restarted", 0): np.array(restarted)}, [commit])
        lost = [(env_id, ended_by) for *_, env_id, ended_by, _ in self.in_progress._lost]
        self.in_progress._lost.clear()
        return lost


@pytest.fixture
def rollouts() -> Rollouts:
    rollouts = Rollouts()
    assert rollouts.take(rollouts.committed(1), [False, False]) == []
    return rollouts


def test_a_worker_that_dies_twice_before_its_rollouts_are_taken_has_a_reason_each_time(rollouts: Rollouts) -> None:
    rollouts.in_progress.worker_lost(0, "worker_died")
    first = rollouts.committed(2)
    rollouts.in_progress.worker_lost(0, "step_timeout")
    second = rollouts.committed(3)
    assert rollouts.take(first, [True, True]) == [(0, "worker_died"), (1, "worker_died")]
    assert rollouts.take(second, [True, True]) == [(0, "step_timeout"), (1, "step_timeout")]
    assert rollouts.take(rollouts.committed(4), [False, True]) == [(1, "restarted")]


def test_a_death_is_no_reason_for_episodes_that_were_lost_before_it(rollouts: Rollouts) -> None:
    before = rollouts.committed(2, [(1, "step", "ValueError: x", "")])
    rollouts.in_progress.worker_lost(0, "worker_died")
    assert rollouts.take(before, [False, True]) == [(1, "environment_error")]
    assert rollouts.take(rollouts.committed(3), [True, True]) == [(0, "worker_died"), (1, "worker_died")]


def test_the_first_of_several_deaths_without_a_rollout_between_is_the_reason(rollouts: Rollouts) -> None:
    rollouts.in_progress.worker_lost(0, "host_lost")
    rollouts.in_progress.worker_lost(0, "worker_died")
    assert rollouts.take(rollouts.committed(2), [True, False]) == [(0, "host_lost")]
