"""Collect rollouts of several agents, with a row loop for parallel agents or for AEC agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from parenv.envs.agents import QuestionedEnv
from parenv.envs.seeding import random_state, set_random_state
from parenv.experience.agent_rollouts import RolloutsByPolicy
from parenv.experience.assembly import assemble_agents
from parenv.protocol.messages import Commit, Credit
from parenv.worker.agent_episodes import EpisodesOfAgents
from parenv.worker.differentiator import Differentiated
from parenv.worker.policy_set import PolicySet
from parenv.worker.replacements import Replacements
from parenv.worker.single_agent_collector import Seconds
from parenv.worker.writing import AgentWriter, RolloutWriter


class AgentsLoop(Protocol):
    """Row loop of agents: acts, and steps the sub-environments of :class:`EpisodesOfAgents`."""

    def begin_episodes(self, seeds: Iterable[tuple[int, int | None]]) -> None:
        """Begin an episode in some sub-environments, up to the first observations, before a rollout."""

    def fill(self, writer: AgentWriter) -> tuple[Seconds, int]:
        """Fill a rollout; return the seconds, and the number of env steps."""

    def get_state(self) -> dict[str, Any]:
        """Return what lasts from one rollout to the next beside the episodes, as plain data."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`get_state`."""


class AgentsCollector:
    """Sub-environments of several agents, see :class:`~parenv.worker.collect_task.Collector`.

    Args:
        episodes: Sub-environments, and their episodes in progress.
        loop: Row loop.
        worker: Index of the worker.

    Attributes:
        env_steps: Number of env steps in the last rollout.
        step_worker_restarts: 0, because sub-environments of several agents have no step workers.
    """

    step_worker_restarts = 0

    def __init__(self, episodes: EpisodesOfAgents, loop: AgentsLoop, worker: int) -> None:
        self._episodes, self._loop, self._worker = episodes, loop, worker
        self.envs, self.assignments, self.each = episodes.envs, episodes.assignments, episodes.each
        self.env_steps = 0
        self._has_begun = False
        self._resume_from: tuple[Mapping[str, Any], Mapping[int, int], bool] | None = None

    @property
    def replacements(self) -> Replacements | None:
        """Factory of environments that replace those that raise. ``None``: the worker raises the error."""
        return self._episodes.replacements

    def begin(self, seeds: Sequence[int | None]) -> None:
        """Begin an episode in every sub-environment."""
        self.assignments.clear()
        self._begin_episodes(enumerate(seeds))

    def load(self, version: int, place: int, snapshot: bytes) -> None:
        """Load a table of versions. The first one begins the episodes, because it takes policies to assign."""
        self.assignments.policies.load(place, snapshot)
        self.assignments.update_policies()
        if self._has_begun:
            return
        if self._resume_from is None:
            self.begin([None] * len(self.envs))
        else:
            state, seeds, broken = self._resume_from
            self._resume(state["collector"], seeds, broken)
            set_random_state(state["random"])
        self._has_begun = True

    def get_state(self) -> dict[str, Any]:
        """Return everything that lasts from one rollout to the next, and the random state, as plain data."""
        envs: list[Any] = [None] * len(self.envs)
        lasting = None
        if self._has_begun:
            envs = self.each("get_state", QuestionedEnv.get_state, range(len(self.envs)))
            roster, truncated = self.assignments.get_state(), list(self._episodes.truncated)
            lasting = {"roster": roster, "truncated": truncated, **self._loop.get_state()}
        return {"envs": envs, "collector": lasting, "random": random_state()}

    def set_state(self, state: dict[str, Any], seeds: Sequence[int], broken: bool) -> list[int]:
        """Restore a state, see :class:`~parenv.worker.collect_task.Collector`. :meth:`load` completes this."""
        if state["collector"] is None:
            return []
        for env, saved in zip(self.envs, state["envs"], strict=True):
            if saved is not None:
                QuestionedEnv(env).set_state(saved)
        renewed = [column for column, saved in enumerate(state["envs"]) if saved is None]
        self._resume_from = state, {column: seeds[column] for column in renewed}, broken
        return renewed

    def collect(self, writer: AgentWriter) -> Seconds:
        """Fill a rollout.

        Raises:
            StopCollectingError: The driver wants this worker to end.
        """
        seconds, self.env_steps = self._loop.fill(writer)
        return seconds

    def rollout(self, writer: AgentWriter, policy_version: int) -> RolloutsByPolicy:
        """Return the rollouts of this worker that were written last."""
        return assemble_agents(
            self.assignments.spec,
            [group.arrays for group in writer.groups],
            [writer.groups[0].columns],
            self.assignments.playing(),
            env_ids=np.array(self.assignments.env_ids),
            worker=self._worker,
            policy_version=policy_version,
            num_steps=self.env_steps,
        )

    def commit_writer(self, writer: AgentWriter) -> RolloutWriter:
        """Return the writer of the commit record and the gradient, which are stored with the sub-environments."""
        return writer.groups[0]

    def commit(self, credit: Credit, rollout: Any, learned: Differentiated, evaluating: PolicySet | None) -> Commit:
        """Return the commit with the env steps, the number of the table of versions, and the policies in use."""
        in_use = self.assignments.indices_in_use | (evaluating.indices if evaluating is not None else set())
        return Commit(
            credit.sequence,
            env_steps=self.env_steps,
            metrics=learned.metrics,
            table=credit.weights_slot,
            in_use=sorted(in_use),
        )

    def postprocess(self, function: Callable[[Any, Any], Any], writer: AgentWriter, policy_version: int) -> None:
        """Call ``postprocess`` of the user once per policy, and write the extras that it returns."""
        spec, policies = self.assignments.spec, self.assignments.policies
        for group in writer.groups:
            group.blank_postprocessed()
        for name, rows in self.rollout(writer, policy_version).items():
            if not rows.num_steps:
                continue
            of = policies.table[name].of
            extras = {e.name: rows.extras[e.name] for e in spec.found[of].extras if not e.postprocessed}
            returned = policies.actors[name].postprocess(function, replace(rows, extras=extras))
            stored, places = spec.stored(of), self.assignments.rows_of(rows.env_ids, rows.agents)
            writer.groups[spec.found[of].group].add({stored[n]: v for n, v in returned.items()}, places, rows.alive)

    def _resume(self, state: Mapping[str, Any], seeds: Mapping[int, int], broken: bool) -> None:
        """Continue from the state; columns with a seed begin a new episode."""
        self._episodes.resume(state["truncated"])
        self.assignments.set_state(state["roster"], list(seeds), broken)
        self._loop.set_state(state)
        self._begin_episodes(seeds.items())

    def _begin_episodes(self, seeds: Iterable[tuple[int, int | None]]) -> None:
        self._loop.begin_episodes(seeds)
        self.assignments.begin_counting()
        self.assignments.update_rows()
