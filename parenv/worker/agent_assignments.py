"""Assign agents to rows and to policies, and keep the state of the rows from one rollout to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parenv.envs.episode_statistics import EpisodeTally
from parenv.envs.fitting import Fit
from parenv.envs.infos import nothing_seen
from parenv.envs.values import action_splitter, row_writer
from parenv.errors import ConfigurationError, ObservationError
from parenv.experience.assembly import Played
from parenv.memory.agent_layout import NOBODY
from parenv.memory.layout import RolloutSpec
from parenv.memory.spaces import is_single
from parenv.memory.trees import as_array, copy_as, map_trees
from parenv.policy.assignment import EpisodeStart, drawn
from parenv.worker.job import Job
from parenv.worker.policy_set import PolicyRows, PolicySet


class AgentRow(NamedTuple):
    """The row of an agent of a sub-environment.

    Args:
        agent: Name of the agent.
        group: Index of its group.
        row: Row among those of the group in this worker.
    """

    agent: str
    group: int
    row: int


class GroupRows:
    """The rows of a group in one worker.

    Args:
        spec: Contents of a rollout of the group.
        num_rows: Number of rows.
        fit: Rules for observations that do not fit their space.
        restarted: Whether this process has replaced another one.

    Attributes:
        observed: First observations of the next rollout, one array ``[R, ...]`` per leaf.
        seen: Infos of these observations that policies take, by name ``[R, ...]``.
        who: Index of the policy that acts in each row, or :data:`~parenv.memory.agent_layout.NOBODY`.
        assigned: Index of the policy that is assigned to each row, also while its agent is not active.
        restarted: Whether the next rollout does not follow the last one that was delivered, by row.
        tally: Returns, lengths and times of the episodes.
        write: Function that writes an observation into a row.
        split: Function that makes an action for each row.
        dtype: Dtype of an observation that is written without a call per step. ``None``: no observation is.
        shape: Shape of such an observation.
    """

    def __init__(self, spec: RolloutSpec, num_rows: int, fit: Fit, restarted: bool) -> None:
        self.observed = [np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in spec.observations]
        self.seen = nothing_seen(spec.infos, num_rows)
        self.who = np.full(num_rows, NOBODY, np.int32)
        self.assigned = np.full(num_rows, NOBODY, np.int32)
        self.restarted = np.full(num_rows, restarted)
        self.tally = EpisodeTally(num_rows)
        self.write = row_writer(spec.observations, fit)
        self.split = action_splitter(spec.actions)
        single = is_single(spec.observations) and not fit.finite
        self.dtype = np.dtype(spec.observations[0].dtype) if single else None
        self.shape = spec.observations[0].shape if single else ()

    def get_state(self) -> dict[str, Any]:
        """Return the state as plain data."""
        lasting = {name: array.copy() for name, array in self._lasting().items()}
        seen = {name: rows.copy() for name, rows in self.seen.items()}
        return {"observed": [row.copy() for row in self.observed], "seen": seen, **lasting}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`get_state`."""
        for mine, saved in zip(self.observed, state["observed"], strict=True):
            mine[:] = saved
        for name, saved in state.get("seen", {}).items():
            self.seen[name][:] = saved
        for name, array in self._lasting().items():
            array[:] = state[name]

    def _lasting(self) -> dict[str, Any]:
        sums = {"returns": self.tally.returns, "lengths": self.tally.lengths}
        return {"who": self.who, "assigned": self.assigned, **sums}


class AgentAssignments:
    """The rows of a worker's agents, and the policies that act for them.

    Args:
        job: Job with ``policy_of`` and the seed.
        policies: Policies of this worker.
        env_ids: env_ids of the sub-environments.
        generation: Generation of the process.

    Attributes:
        groups: Rows of the sub-environments themselves, then rows of each group of agents.
        agent_rows: Row of each agent by name, for each sub-environment.
        agents: Names of all possible agents, in the order of their rows.
        policy_rows: Rows of each policy, by its index.
        acting: Members of ``policy_rows`` that have rows at present.
        names: Name of the policy of each agent, for each sub-environment.
        numbers: Number of the current episode of each sub-environment.
    """

    def __init__(self, job: Job, policies: PolicySet, env_ids: Sequence[int], generation: int) -> None:
        self.spec = spec = policies.spec
        self.env_ids = list(env_ids)
        self._job, self.policies, self._generation = job, policies, generation
        num_envs = len(self.env_ids)
        self.groups = [GroupRows(g, num_envs * len(g.agents), policies.fit, generation > 0) for g in spec.groups]
        self.groups[0].who[:] = 0  # A sub-environment is always there.
        self.agent_rows = [
            {
                a: AgentRow(a, group, column * len(spec.groups[group].agents) + i)
                for a, (group, i) in spec.agent_rows.items()
            }
            for column in range(num_envs)
        ]
        self.agents = list(spec.agent_rows)
        self.policy_rows: dict[int, PolicyRows] = {}
        self.acting: list[PolicyRows] = []
        self.names: list[Mapping[str, str]] = [{} for _ in self.env_ids]
        self.numbers = [-1] * num_envs
        self._activated: list[tuple[GroupRows, int]] = []

    @property
    def indices_in_use(self) -> set[int]:
        """Indices of the policies that act in an episode in progress."""
        return {self.policies.table[name].index for mine in self.names for name in mine.values()}

    def get_state(self) -> dict[str, Any]:
        """Return the rows, the assigned policies and the carries as plain data."""
        return {
            "numbers": list(self.numbers),
            "names": [dict(names) for names in self.names],
            "groups": [group.get_state() for group in self.groups],
            "carries": {s.name: map_trees(as_array, s.carry) for s in self.policy_rows.values() if s.carry is not None},
        }

    def set_state(self, state: Mapping[str, Any], renewed: Sequence[int], broken: bool) -> None:
        """Restore a state of :meth:`get_state`. Columns that are ``renewed`` begin a new episode, without agents yet.

        ``broken`` means that the next rollout does not follow the last one that was delivered.
        """
        self.numbers, self.names = list(state["numbers"]), [dict(names) for names in state["names"]]
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.set_state(saved)
            group.restarted[:] = broken
        for policy in self.policy_rows.values():
            if policy.carry is not None and policy.name in state["carries"]:
                policy.carry = map_trees(copy_as, policy.carry, state["carries"][policy.name])
        for column in renewed:
            self.groups[0].restarted[column] = True
            for agent_row in self.agent_rows[column].values():
                self.groups[agent_row.group].who[agent_row.row] = NOBODY
                self.groups[agent_row.group].restarted[agent_row.row] = True

    def update_policies(self) -> None:
        """Add rows of new policies, and remove those of released ones."""
        there = {row.index: name for name, row in self.policies.table.items()}
        self.policy_rows = {index: policy for index, policy in self.policy_rows.items() if index in there}
        for index, name in there.items():
            if index not in self.policy_rows:
                self.policy_rows[index] = self._make_policy_rows(index, name)
        self.update_rows()

    def clear(self) -> None:
        """Remove all agents."""
        for group in self.groups[1:]:
            group.who[:] = NOBODY

    def begin_episode(self, column: int) -> None:
        """Begin the next episode of a sub-environment, and assign policies to its agents."""
        self.numbers[column] += 1
        self.groups[0].tally.start(column)
        self._activated.append((self.groups[0], column))
        if self._job.policy_of is not None or not self.names[column]:
            self._draw(column)

    def versions(self) -> list[int]:
        """Return the versions of the policies that learn."""
        return [self.policies.table[name].number for name in self.spec.policies]

    def playing(self) -> dict[int, Played]:
        """Return all policies that may act, by index."""
        return {row.index: Played(name, row.of, row.number, 0) for name, row in self.policies.table.items()}

    def agent_row_of(self, column: int, agent: str) -> AgentRow:
        """Return the row of an agent.

        Raises:
            ObservationError: The agent is not among the possible agents.
        """
        agent_row = self.agent_rows[column].get(agent)
        if agent_row is None:
            raise ObservationError(
                f"possible_agents must contain every agent, but env_id {self.env_ids[column]} has the agent {agent!r} "
                f"and possible_agents {list(self.agent_rows[column])}"
            )
        return agent_row

    def rows_of(self, env_ids: Any, agents: Sequence[str]) -> Any:
        """Return the rows of agents in their group, int64 ``[n]``."""
        first = self.env_ids[0]
        both = zip(env_ids.tolist(), agents, strict=True)
        return np.array([self.agent_rows[env_id - first][agent].row for env_id, agent in both])

    def activate(self, of: int, row: int) -> None:
        """Activate the agent of a row of group ``of``."""
        group = self.groups[of]
        index = int(group.assigned[row])
        group.who[row] = index
        group.tally.start(row)
        self._activated.append((group, row))
        self.policy_rows[index].begin_row(row)

    def begin_counting(self) -> None:
        """Set the return and the length of all episodes that began since the last call to 0."""
        for group, row in self._activated:
            group.tally.forget(row)
        self._activated.clear()

    def update_rows(self) -> None:
        """Update the rows of every policy after agents have come or gone."""
        for policy in self.policy_rows.values():
            policy.rows = np.flatnonzero(self.groups[policy.group].who == policy.index)
        self.acting = [policy for policy in self.policy_rows.values() if len(policy.rows)]

    def _draw(self, column: int) -> None:
        env_id, number = self.env_ids[column], self.numbers[column]
        episode = EpisodeStart(env_id, number, self.policies.settings, (self._job.seed, self._generation))
        self.names[column] = {agent: self._drawn(agent, episode) for agent in self.agent_rows[column]}
        for agent_row in self.agent_rows[column].values():
            self.groups[agent_row.group].assigned[agent_row.row] = self.policies.table[
                self.names[column][agent_row.agent]
            ].index

    def _make_policy_rows(self, index: int, name: str) -> PolicyRows:
        of = self.policies.table[name].of
        group = self.spec.found[of].group
        agents, num_rows = self.spec.groups[group].agents, len(self.groups[group].who)

        def describe(row: int) -> str:
            return f"agent {agents[row % len(agents)]!r} of env_id {self.env_ids[row // len(agents)]}"

        return PolicyRows(name, index, group, self.policies.actors[name], num_rows, self.spec.stored(of), describe)

    def _drawn(self, agent: str, episode: Any) -> str:
        name = drawn(self._job.policy_of, agent, episode, self.policies.table)
        of, group = self.policies.table[name].of, self.spec.agent_rows[agent][0]
        if self.spec.found[of].group != group:
            theirs = self.spec.groups[self.spec.found[of].group].agents
            raise ConfigurationError(
                f"policy_of must return a policy with the spaces of the agent, got {name!r} for agent {agent!r} in "
                f"episode {episode.number} of env_id {episode.env_id}, but {of!r} acts for {list(theirs)} with other "
                f"spaces. Give {agent!r} a policy of its own."
            )
        return name
