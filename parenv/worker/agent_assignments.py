"""Who is there in each sub-environment, in which row, and by which policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError, ObservationError
from parenv.experience.agents_assembly import Played
from parenv.memory.agent_layout import NOBODY
from parenv.memory.trees import as_array, copy_as, map_trees
from parenv.policy.assignment import EpisodeStart, drawn
from parenv.worker.group_rows import AgentRow, GroupRows
from parenv.worker.job import AgentsJob
from parenv.worker.policy_rows import PolicyRows
from parenv.worker.policy_set import PolicySet


class AgentAssignments:
    """The rows of a worker's agents, and the policies that act for them.

    Args:
        job: knows who draws, and from which seed.
        policy_set: the policies.
        env_ids: of the sub-environments.
        generation: of the process.

    Attributes:
        groups: rows of the sub-environments themselves, then of each group of agents.
        agent_rows: of each sub-environment, by agent.
        agents: everybody, in the order of the agent rows.
        sides: by index of the policy.
        acting: the sides that somebody is on.
        numbers: of each sub-environment, that of its episode.
    """

    def __init__(self, job: AgentsJob, policy_set: PolicySet, env_ids: Sequence[int], generation: int) -> None:
        self.spec = spec = policy_set.spec
        self.env_ids = list(env_ids)
        self._job, self._policy_set, self._generation = job, policy_set, generation
        num_envs = len(self.env_ids)
        self.groups = [GroupRows(g.spec, num_envs * len(g.agents), policy_set.fit, generation > 0) for g in spec.groups]
        self.groups[0].who[:] = 0  # A sub-environment is always there.
        self.agent_rows = [
            {
                a: AgentRow(a, group, column * len(spec.groups[group].agents) + i)
                for a, (group, i) in spec.agent_rows.items()
            }
            for column in range(num_envs)
        ]
        self.agents = list(spec.agent_rows)
        self.sides: dict[int, PolicyRows] = {}
        self.acting: list[PolicyRows] = []
        self.names: list[Mapping[str, str]] = [{} for _ in self.env_ids]
        self.numbers = [-1] * num_envs
        self._activated: list[tuple[GroupRows, int]] = []

    @property
    def indices_in_use(self) -> set[int]:
        """The policies by which somebody acts in an episode under way."""
        return {self._policy_set.table[name].index for mine in self.names for name in mine.values()}

    def get_state(self) -> dict[str, Any]:
        """Who is there, with what, as plain data."""
        return {
            "numbers": list(self.numbers),
            "names": [dict(names) for names in self.names],
            "groups": [group.get_state() for group in self.groups],
            "carries": {s.name: map_trees(as_array, s.carry) for s in self.sides.values() if s.carry is not None},
        }

    def set_state(self, state: Mapping[str, Any], anew: Sequence[int], broken: bool) -> None:
        """Restore a state; sub-environments that begin anew have no agents yet.

        Args:
            state: of :meth:`get_state`.
            anew: these.
            broken: whether what follows does not follow what was delivered last.
        """
        self.numbers, self.names = list(state["numbers"]), [dict(names) for names in state["names"]]
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.set_state(saved)
            group.restarted[:] = broken
        for side in self.sides.values():
            if side.carry is not None and side.name in state["carries"]:
                side.carry = map_trees(copy_as, side.carry, state["carries"][side.name])
        for column in anew:
            self.groups[0].restarted[column] = True
            for agent_row in self.agent_rows[column].values():
                self.groups[agent_row.group].who[agent_row.row] = NOBODY
                self.groups[agent_row.group].restarted[agent_row.row] = True

    def settle(self) -> None:
        """Take note of policies that have come and gone."""
        there = {row.index: name for name, row in self._policy_set.table.items()}
        self.sides = {index: side for index, side in self.sides.items() if index in there}
        for index, name in there.items():
            if index not in self.sides:
                self.sides[index] = self._side(index, name)
        self.share_out()

    def clear(self) -> None:
        """Nobody is there."""
        for group in self.groups[1:]:
            group.who[:] = NOBODY

    def begin_episode(self, column: int) -> None:
        """Draw who plays in the next episode of a sub-environment."""
        self.numbers[column] += 1
        self.groups[0].clocks.begin(column)
        self._activated.append((self.groups[0], column))
        if self._job.policy_of is not None or not self.names[column]:
            self._draw(column)

    def versions(self) -> list[int]:
        """Those of the policies that learn."""
        return [self._policy_set.table[name].number for name in self.spec.policies]

    def playing(self) -> dict[int, Played]:
        """By index, all policies that may act."""
        return {row.index: Played(name, row.of, row.number, 0) for name, row in self._policy_set.table.items()}

    def agent_row_of(self, column: int, agent: str) -> AgentRow:
        """The agent row of an agent.

        Raises:
            ObservationError: it has none.
        """
        agent_row = self.agent_rows[column].get(agent)
        if agent_row is None:
            raise ObservationError(
                f"env_id {self.env_ids[column]} has the agent {agent!r}, which is not among its possible_agents "
                f"{list(self.agent_rows[column])}"
            )
        return agent_row

    def rows_of(self, env_ids: Any, agents: Sequence[str]) -> Any:
        """In which rows of their group agents of sub-environments are, int64 ``[n]``."""
        first = self.env_ids[0]
        both = zip(env_ids.tolist(), agents, strict=True)
        return np.array([self.agent_rows[env_id - first][agent].row for env_id, agent in both])

    def activate(self, of: int, row: int) -> None:
        """The agent of a row of a group begins to be there."""
        group = self.groups[of]
        index = int(group.assigned[row])
        group.who[row] = index
        group.clocks.begin(row)
        self._activated.append((group, row))
        self.sides[index].begin_row(row)

    def begin_counting(self, length: int = 0) -> None:
        """What has begun since the last time has no return yet, and this length."""
        for group, row in self._activated:
            group.returns[row], group.lengths[row] = 0.0, length
        self._activated.clear()

    def share_out(self) -> None:
        """Tell every side its rows."""
        for side in self.sides.values():
            side.rows = np.flatnonzero(self.groups[side.group].who == side.index)
        self.acting = [side for side in self.sides.values() if len(side.rows)]

    def _draw(self, column: int) -> None:
        env_id, number = self.env_ids[column], self.numbers[column]
        episode = EpisodeStart(env_id, number, self._policy_set.settings, (self._job.seed, self._generation))
        self.names[column] = {agent: self._drawn(agent, episode) for agent in self.agent_rows[column]}
        for agent_row in self.agent_rows[column].values():
            self.groups[agent_row.group].assigned[agent_row.row] = self._policy_set.table[
                self.names[column][agent_row.agent]
            ].index

    def _side(self, index: int, name: str) -> PolicyRows:
        of = self._policy_set.table[name].of
        group = self.spec.found[of].group
        agents, num_rows = self.spec.groups[group].agents, len(self.groups[group].who)

        def whose(row: int) -> str:
            return f"agent {agents[row % len(agents)]!r} of env_id {self.env_ids[row // len(agents)]}"

        return PolicyRows(name, index, group, self._policy_set.actors[name], num_rows, self.spec.stored(of), whose)

    def _drawn(self, agent: str, episode: Any) -> str:
        name = drawn(self._job.policy_of, agent, episode, self._policy_set.table)
        of, group = self._policy_set.table[name].of, self.spec.agent_rows[agent][0]
        if self.spec.found[of].group != group:
            theirs = self.spec.groups[self.spec.found[of].group].agents
            raise ConfigurationError(
                f"policy_of returned {name!r} for agent {agent!r} in episode {episode.number} of env_id "
                f"{episode.env_id}, but {of!r} acts for {list(theirs)}, whose spaces are others: give {agent!r} a "
                "policy of its own"
            )
        return name
