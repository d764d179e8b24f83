"""Collecting whole episodes, for losses over Monte-Carlo returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError
from parenv.experience.assembly import episodes_of
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.rollout import NAMED, PER_STEP, Ends, Rollout
from parenv.memory.layout import MAX_EPISODE_STEPS
from parenv.memory.trees import concatenated, map_trees
from parenv.worker.collecting import Collector, Seconds, private_writer

CHUNK = 64
"""Rows that are collected into one piece of memory."""


class EpisodeCollector:
    """Plays one episode in every sub-environment, all by one version of the policy.

    The number per sub-environment is fixed, since taking the episodes that end first would favour short ones. A
    sub-environment that is done early goes on, unheard, until the last one is.

    Args:
        collector: over the sub-environments; nobody else may use it.

    Attributes:
        all_fresh: whether every sub-environment is at the beginning of an episode.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        collector.spec = replace(collector.spec, rollout_length=CHUNK)
        self.all_fresh = True

    def collect(self, policy_version: int) -> tuple[Rollout, Seconds]:
        """The episodes one behind the other, as a rollout ``[N, 1]``.

        Raises:
            ConfigurationError: an episode does not end.
            StopCollectingError: the driver wants this worker to end.
        """
        collector, batch = self._collector, self._collector.stepper.num_envs
        if not self.all_fresh:
            collector.restart()
        missing, seconds = set(range(batch)), Seconds(0.0, 0.0)
        pieces: list[list[Rollout]] = [[] for _ in range(batch)]
        while missing:
            writer = private_writer(collector.spec, batch)
            spent = collector.collect(writer, enough=_all_of(missing))
            seconds = Seconds(seconds.environment + spent.environment, seconds.acting + spent.acting)
            chunk = collector.rollout(writer, policy_version)
            steps, columns = chunk.final_index
            records = writer.end_records()
            for column in sorted(missing):
                ends = steps[columns == column]
                mine = episodes_of(records[records["column"] == column][:1], chunk.env_ids)
                pieces[column].append(_piece(chunk, column, int(ends[0]) + 1 if len(ends) else CHUNK, mine))
                if len(ends):
                    missing.discard(column)
                elif len(pieces[column]) * CHUNK > MAX_EPISODE_STEPS:
                    raise ConfigurationError(
                        f"an episode has not ended after {MAX_EPISODE_STEPS:,} env steps: wrap the environment in "
                        'gymnasium.wrappers.TimeLimit, or do without rollout_length="episode"'
                    )
        self.all_fresh = batch == 1
        return _joined(pieces, collector.initial_carry(1)), seconds


def _all_of(missing: set[int]) -> Callable[[Any], bool]:
    left = set(missing)

    def enough(columns: Any) -> bool:
        left.difference_update(columns)
        return not left

    return enough


def _piece(chunk: Rollout, column: int, count: int, episodes: EpisodeStatistics) -> Rollout:
    """The first rows of a column of a chunk, with the next observations in place of the shifted ones."""

    def cut(value: Any) -> Any:
        if isinstance(value, list):
            return [[row[column]] for row in value[:count]]
        return value[:count, column : column + 1]

    cuts = {name: map_trees(cut, getattr(chunk, name)) for name in (*PER_STEP, *NAMED)}
    return replace(
        chunk,
        **cuts,
        shifted_observations=map_trees(cut, chunk.next_observations()),
        env_ids=chunk.env_ids[column : column + 1],
        episodes=episodes,
    )


def _joined(pieces: list[list[Rollout]], initial_carry: Any) -> Rollout:
    parts = [part for column in pieces for part in column]
    fields = (*PER_STEP, "shifted_observations", *NAMED)
    whole = {name: map_trees(concatenated, *(getattr(part, name) for part in parts)) for name in fields}
    steps = np.cumsum([sum(len(part.rewards) for part in column) for column in pieces]) - 1

    def at_ends(value: Any) -> Any:
        return [value[step][0] for step in steps] if isinstance(value, list) else value[steps, 0]

    finals = map_trees(at_ends, whole["shifted_observations"])
    return replace(
        parts[0],
        **whole,
        last_observations=map_trees(lambda value: value[-1:], finals),
        initial_carry=initial_carry,
        env_ids=parts[0].env_ids if len(pieces) == 1 else np.array([-1]),
        episodes=EpisodeStatistics.joined([column[-1].episodes for column in pieces]),
        restarted=np.zeros(1, bool),
        resetting=None,
        ends=[Ends(steps, np.zeros_like(steps), finals)],
    )
