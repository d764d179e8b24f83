"""Episodes in progress as far as their steps were yielded, so that those that are lost can be listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.experience.agent_rollouts import AgentEpisodes
from parenv.experience.assembly import Arrays
from parenv.experience.endings import ENVIRONMENT_ERROR, RESTARTED
from parenv.experience.episodes import ALL_COLUMNS, EpisodeStatistics
from parenv.memory.layout import OPEN_DTYPE
from parenv.pool.arrival import Arrival, Block
from parenv.protocol.messages import Commit

_OPEN, _RESTARTED = ("open", 0), ("restarted", 0)


class EpisodesInProgress:
    """Episodes that the end of a worker's last rollout has cut in two.

    Workers write return, length and seconds of these episodes into each rollout. If the first row of the next one is
    flagged in ``restarted``, the episode before it was lost.

    Args:
        num_envs: Number of sub-environments.
        first_env_id: The first of them.
    """

    def __init__(self, num_envs: int, first_env_id: int) -> None:
        self._first = first_env_id
        self._open = np.zeros(num_envs, OPEN_DTYPE)
        self._reasons: dict[int, str] = {}
        """Reason for which each worker was lost first since it last completed a rollout."""
        self._reasons_before: dict[tuple[int, int], str] = {}
        """Reason for the losses before a rollout that was not noted yet, by worker and number of its credit."""
        self._lost: list[tuple[Any, ...]] = []
        """Columns of :class:`EpisodeStatistics` and number, of lost episodes that were not yielded yet."""

    def worker_lost(self, worker: int, ended_by: str) -> None:
        """Note the reason for which the episodes of a worker are lost."""
        self._reasons.setdefault(worker, ended_by)

    def committed(self, worker: int, sequence: int) -> None:
        """Note that a worker has completed the rollout of a credit. If it was lost, a new process has.

        The rollout is noted later, when its turn comes. By then, the worker may have been lost again.
        """
        if worker in self._reasons:
            self._reasons_before[worker, sequence] = self._reasons.pop(worker)

    def add(self, lost: EpisodeStatistics) -> None:
        """Add lost episodes."""
        columns = (getattr(lost, name).tolist() for name in ALL_COLUMNS)
        self._lost += [(*episode, 0) for episode in zip(*columns, strict=True)]

    def note(self, block: Block, arrays: Arrays, commits: Sequence[Commit]) -> None:
        """Note the episodes in progress after a rollout, and those that were lost before it."""
        first, stop = block.columns[0].first, block.columns[-1].stop
        restarted = arrays[_RESTARTED][first:stop]
        if np.count_nonzero(restarted):
            self._note_lost(block, commits, set(block.env_ids[restarted].tolist()))
        begin = block.env_ids_of[0].start - self._first
        self._open[begin : begin + stop - first] = arrays[_OPEN][first:stop]

    def add_lost(self, arrival: Arrival) -> Arrival:
        """Return an arrival with the lost episodes that were not yielded yet."""
        if not self._lost:
            return arrival
        *columns, numbers = zip(*self._lost, strict=True)
        self._lost.clear()
        lost, rollout = EpisodeStatistics.of(*columns), arrival.rollout
        episodes: Any = rollout.episodes
        if isinstance(episodes, AgentEpisodes):
            lost = AgentEpisodes(**vars(lost), agents=[""] * len(lost), numbers=np.asarray(numbers, np.int64))
        return arrival._replace(rollout=replace(rollout, episodes=type(lost).joined([lost, episodes])))

    def get_state(self) -> list[Any]:
        """Return returns, lengths, seconds and numbers of the episodes in progress as plain data."""
        return [self._open[name].copy() for name in OPEN_DTYPE.names or ()]

    def set_state(self, state: Sequence[Any]) -> None:
        """Continue from a state of :meth:`get_state`."""
        for name, values in zip(OPEN_DTYPE.names or (), state, strict=True):
            self._open[name] = values

    def _note_lost(self, block: Block, commits: Sequence[Commit], restarted: set[int]) -> None:
        for worker, env_ids, commit in zip(block.workers, block.env_ids_of, commits, strict=True):
            reason = self._reasons_before.pop((worker, commit.sequence), "")
            replaced = {env_id for env_id, *_ in commit.replaced}
            for env_id in sorted(restarted.intersection(env_ids)):
                episode_return, length, seconds, number = self._open[env_id - self._first].item()
                if length:
                    ended_by = reason or (ENVIRONMENT_ERROR if env_id in replaced else RESTARTED)
                    self._lost.append((episode_return, length, seconds, env_id, ended_by, number))
