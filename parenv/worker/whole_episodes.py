"""Collect whole episodes, for losses over Monte-Carlo returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError
from parenv.experience.assembly import episodes_of
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.rollout import NAMED, PER_STEP, Ends, Rollout
from parenv.memory.layout import MAX_EPISODE_STEPS
from parenv.memory.trees import concatenated, map_trees
from parenv.protocol.messages import Commit, Credit
from parenv.worker.differentiator import Differentiated
from parenv.worker.single_agent_collector import Seconds, SingleAgentCollector, private_writer
from parenv.worker.writing import RolloutWriter

CHUNK = 64
"""Number of rows per chunk."""


class EpisodeCollector(SingleAgentCollector):
    """Collect one whole episode of every sub-environment, all by one version of the policy.

    The number per sub-environment is fixed, since taking the episodes that end first would favour short ones. A
    sub-environment that finishes early continues until the last one finishes, and these steps are dropped.

    Args:
        *arguments: Arguments of :class:`~parenv.worker.single_agent_collector.SingleAgentCollector`.
        **more: Keyword arguments of it.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.spec = replace(self.spec, rollout_length=CHUNK)
        self._all_fresh = True
        """Whether every sub-environment is at the beginning of an episode."""
        self._episodes: Rollout | None = None

    def get_state(self) -> dict[str, Any]:
        """Return the state of the collector, and whether every sub-environment is at the beginning of an episode."""
        return {**super().get_state(), "fresh": self._all_fresh}

    def set_state(self, state: dict[str, Any], seeds: Sequence[int], broken: bool) -> list[int]:
        """Restore a state. The next rollout begins with a restart if episodes are in progress."""
        self._all_fresh = state.get("fresh", False)
        return super().set_state(state, seeds, broken)

    def collect(self, writer: RolloutWriter, enough: Callable[[Sequence[int]], bool] | None = None) -> Seconds:
        """Collect the episodes in chunks of private memory. They do not go through the slot.

        Raises:
            ConfigurationError: An episode does not end.
            StopCollectingError: The driver wants this worker to end.
        """
        batch = self.stepper.num_envs
        if not self._all_fresh:
            self.restart()
        missing, seconds = set(range(batch)), Seconds(0.0, 0.0)
        pieces: list[list[Rollout]] = [[] for _ in range(batch)]
        while missing:
            chunk_writer = private_writer(self.spec, batch)
            spent = super().collect(chunk_writer, enough=_all_of(missing))
            seconds = Seconds(seconds.environment + spent.environment, seconds.acting + spent.acting)
            chunk = super().rollout(chunk_writer, -1)
            steps, columns = chunk.final_index
            records = chunk_writer.end_records()
            for column in sorted(missing):
                ends = steps[columns == column]
                mine = episodes_of(records[records["column"] == column][:1], chunk.env_ids)
                pieces[column].append(_piece(chunk, column, int(ends[0]) + 1 if len(ends) else CHUNK, mine))
                if len(ends):
                    missing.discard(column)
                else:
                    check_length(len(pieces[column]) * CHUNK)
        self._all_fresh = batch == 1
        self._episodes = _joined(pieces, self.initial_carry(1))
        return seconds

    def rollout(self, writer: RolloutWriter, policy_version: int, postprocessed: bool = True) -> Rollout:
        """Return the episodes that were collected last, one after another, as a rollout ``[N, 1]``."""
        episodes, self._episodes = self._episodes, None
        assert episodes is not None
        return replace(episodes, policy_version=policy_version)

    def commit(self, credit: Credit, rollout: Any, learned: Differentiated, evaluating: Any) -> Commit:
        """Return the commit with the number of env steps, the metrics of ``loss_fn``, and the episodes."""
        episodes = rollout.episodes.columns()
        return Commit(credit.sequence, env_steps=rollout.num_steps, metrics=learned.metrics, episodes=episodes)


def check_length(num_steps: int) -> None:
    """Check the length so far of an episode.

    Raises:
        ConfigurationError: It is too long.
    """
    if num_steps > MAX_EPISODE_STEPS:
        raise ConfigurationError(
            f'episodes must end within {MAX_EPISODE_STEPS:,} env steps with rollout_length="episode". Wrap the '
            "environment in gymnasium.wrappers.TimeLimit, or pass a number of steps."
        )


def _all_of(missing: set[int]) -> Callable[[Any], bool]:
    left = set(missing)

    def enough(columns: Any) -> bool:
        left.difference_update(columns)
        return not left

    return enough


def _piece(chunk: Rollout, column: int, count: int, episodes: EpisodeStatistics) -> Rollout:
    """Return the first rows of a column of a chunk. Next observations replace the shifted ones."""

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
