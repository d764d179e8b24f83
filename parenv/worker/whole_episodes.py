"""Collect whole episodes, for losses over Monte-Carlo returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.experience.assembly import episodes_of
from parenv.experience.episode_parts import joined, rollout_of_episode
from parenv.experience.rollout import Rollout
from parenv.memory.trees import concatenated
from parenv.protocol.messages import Commit, Credit
from parenv.worker.chunk_cutter import ChunkCutter, Part, initial_carry
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
        self._parts: list[list[Part]] = []
        """Parts of the episode of each sub-environment."""

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
        cutter, seconds = ChunkCutter(batch), Seconds(0.0, 0.0)
        self._parts = [[] for _ in range(batch)]
        while any(cutter.is_playing):
            chunk = private_writer(self.spec, batch)
            spent = super().collect(chunk, enough=_all_of(np.flatnonzero(cutter.is_playing)))
            seconds = Seconds(seconds.environment + spent.environment, seconds.acting + spent.acting)
            for column, part in cutter.cut(chunk, CHUNK):
                self._parts[column].append(part)
        self._all_fresh = batch == 1
        return seconds

    def rollout(self, writer: RolloutWriter, policy_version: int, postprocessed: bool = True) -> Rollout:
        """Return the episodes that were collected last, one after another, as a rollout ``[N, 1]``."""
        episodes, self._parts = self._parts, []
        ended = [parts[-1] for parts in episodes]
        rows = joined([part.steps for parts in episodes for part in parts])
        records = np.concatenate([part.record for part in ended])
        statistics = episodes_of(records, self.env_ids)
        records["step"] = np.cumsum([sum(len(part.steps["rewards", 0]) for part in parts) for parts in episodes]) - 1
        # The first row of another episode follows, and not a reset or a lost step.
        records["resets_next"] = records["void"] = False
        finals = [concatenated(*leaf) for leaf in zip(*(part.finals for part in ended), strict=True)]
        last = {("observations", i): concatenated(rows["observations", i], leaf[-1:]) for i, leaf in enumerate(finals)}
        rollout = rollout_of_episode(
            self.spec,
            {**rows, **last},
            records,
            finals,
            initial_carry=initial_carry(self.spec, self.actor),
            env_id=int(self.env_ids[0]) if len(ended) == 1 else -1,
            worker=self._worker,
            newest=policy_version,
            extras=[extra.name for extra in self.spec.extras],
        )
        about: dict[str, Any] = {"policy_version": policy_version, "policy_lag": 0, "policy_versions": None}
        shifted = rollout.next_observations()
        return replace(rollout, episodes=statistics, shifted_observations=shifted, resetting=None, **about)

    def commit(self, credit: Credit, rollout: Any, learned: Differentiated, evaluating: Any) -> Commit:
        """Return the commit with the number of env steps, the metrics of ``loss_fn``, and the episodes."""
        episodes = rollout.episodes.columns()
        return Commit(credit.sequence, env_steps=rollout.num_steps, metrics=learned.metrics, episodes=episodes)


def _all_of(missing: Any) -> Callable[[Any], bool]:
    left = set(missing.tolist())

    def enough(columns: Any) -> bool:
        left.difference_update(columns)
        return not left

    return enough
