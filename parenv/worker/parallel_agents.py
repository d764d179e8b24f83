"""The row loop of parallel agents: all active agents act in every step, and rows are aligned in time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any

import numpy as np

from parenv.envs.fitting import shown
from parenv.envs.infos import write_seen
from parenv.envs.returned import NOTHING, check_flags, explain_step
from parenv.errors import ObservationError
from parenv.memory.agent_layout import NOBODY
from parenv.worker.agent_episodes import EpisodesOfAgents
from parenv.worker.single import ACT
from parenv.worker.single_agent_collector import Seconds, StopCollectingError
from parenv.worker.writing import AgentWriter


class ParallelLoop:
    """Row loop of sub-environments whose step takes the actions of all agents.

    Args:
        episodes: Sub-environments.
    """

    _writer: AgentWriter

    def __init__(self, episodes: EpisodesOfAgents) -> None:
        self._episodes, self._envs, self._status = episodes, episodes.envs, episodes.status
        self._assignments = episodes.assignments
        self._everybody = [
            [agent_row[:] for agent_row in agent_rows.values()] for agent_rows in self._assignments.agent_rows
        ]
        self._live: list[list[tuple[str, int, int]]] = [[] for _ in self._envs]
        """Rows of the active agents, as plain tuples, which are faster to unpack."""
        self._agents: list[list[str]] = [[] for _ in self._envs]
        self._has_state = bool(self._assignments.groups[0].observed)
        self._infos = [group.infos for group in self._assignments.spec.groups]
        self._changed = False
        self._not_taken = 0

    def get_state(self) -> dict[str, Any]:
        """Return the active agents."""
        return {"agents": [list(agents) for agents in self._agents]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the active agents."""
        self._agents = [list(agents) for agents in state["agents"]]
        self._live = list(starmap(self._live_of, enumerate(self._agents)))

    def begin_episodes(self, seeds: Iterable[tuple[int, int | None]]) -> None:
        """Begin an episode in some sub-environments."""
        # Before a rollout begins, observations are written to the arrays of the groups.
        self._rows: Sequence[Any] = [group.observed for group in self._assignments.groups]
        self._seen: Sequence[Mapping[str, Any]] = [group.seen for group in self._assignments.groups]
        for column, seed in seeds:
            self._begin_episode(column, seed)

    def fill(self, writer: AgentWriter) -> tuple[Seconds, int]:
        """Fill a rollout; return the seconds, and the number of env steps.

        Raises:
            StopCollectingError: The driver wants this worker to end.
        """
        clock, status, assignments = time.perf_counter, self._status, self._assignments
        cell, heartbeat, closing = status.cell, status.heartbeat, status.closing
        self._writer = writer
        self._episodes.begin_writing(writer, self._episodes.carries)
        environment = acting = 0.0
        self._not_taken = 0
        agents = list(zip(assignments.groups[1:], writer.groups[1:], strict=True))
        for step in range(assignments.spec.rollout_length):
            if closing[0]:
                raise StopCollectingError
            began = clock()
            cell[0] = ACT
            heartbeat[0] += 1
            for policy in assignments.acting:
                policy.act(writer.groups[policy.group], step)
            acted = clock()
            self._step([(), *(group.split(mine.action_rows[step]) for group, mine in agents)], step)
            acting += acted - began
            environment += clock() - acted
        for group, rows, seen in zip(assignments.groups, self._rows, self._seen, strict=True):
            group.observed = [row.copy() for row in rows]
            group.seen = {name: row.copy() for name, row in seen.items()}
        self._episodes.finish_writing()
        return Seconds(environment, acting), (step + 1) * len(self._envs) - self._not_taken

    def _step(self, actions: Sequence[Any], step: int) -> None:
        """Step every sub-environment. If an agent's part of an episode ends, keep its final observation."""
        cell, groups, array, has_state = self._status.cell, self._assignments.groups, np.ndarray, self._has_state
        rows, self._seen, rewards = self._writer.steps[step]
        self._rows, are_named = rows, any(self._infos)
        episodes = self._episodes
        together = zip(episodes.step_codes, episodes.steps, self._envs, self._live, self._agents, strict=True)
        for column, (step_code, step_env, env, live, agents) in enumerate(together):
            cell[0], given, returned = step_code, {}, NOTHING
            for agent, index, row in live:
                given[agent] = actions[index][row]
            try:
                returned = observations, rewarded, terminated, truncated, infos = step_env(given)
            except (Exception, SystemExit) as error:
                explain_step(error, returned, self._assignments.env_ids[column])
                self._replace(column, error, step)
                continue
            ended: tuple[str, ...] = ()
            try:
                for agent, index, row in live:
                    if (reward := rewarded[agent]) is None:  # numpy would store NaN.
                        raise TypeError
                    rewards[index][row] = reward
                    observation, group = observations[agent], groups[index]
                    if terminated[agent] or truncated[agent]:
                        check_flags((terminated[agent], truncated[agent]))
                        self._end(index, row, step, observation, bool(terminated[agent]), column)
                        ended = (*ended, agent)
                    elif (
                        type(observation) is array
                        and observation.dtype is group.dtype
                        and observation.shape == group.shape
                    ):
                        rows[index][0][row] = observation
                    else:
                        group.write(rows[index], row, observation)
            except KeyError as error:
                raise self._missing_agent(column, agent, error) from error
            except Exception as error:
                self._explain(column, agent, error, returned)
                raise
            if are_named:
                for agent, index, row in live:
                    self._writer.groups[index].infos.write(step, row, infos.get(agent, {}))
            if ended or env.agents != agents:
                self._change(column, step, (observations, infos), ended)
            elif has_state:
                self._write_state(column, rows[0], column)
        for group, mine in zip(groups, rewards, strict=True):
            group.tally.add(mine)
        self._assignments.begin_counting()
        if self._changed:
            self._changed = False
            self._assignments.update_rows()

    def _missing_agent(self, column: int, agent: str, error: KeyError) -> Exception:
        if error.args != (agent,):
            return error
        return ObservationError(
            f"step() must return an observation, a reward, a termination and a truncation for every agent that acted, "
            f"but agent {agent!r} of env_id {self._assignments.env_ids[column]} is missing"
        )

    def _explain(self, column: int, agent: str, error: Exception, returned: Any) -> None:
        """Explain an error by an agent's part of the result of a step."""
        env_id = self._assignments.env_ids[column]
        for name, part in zip(("rewards", "terminations", "truncations"), returned[1:4], strict=True):
            if not isinstance(part, Mapping):
                error.args = (f"the {name} of env_id {env_id} must be a dict by agent, got {shown(part)}",)
                return
        explain_step(error, tuple(part.get(agent) for part in returned), env_id, agent)

    def _end(self, index: int, row: int, step: int, observation: Any, terminated: bool, column: int) -> None:
        """End an agent's part of an episode with this observation."""
        mine = self._writer.groups[index]
        self._assignments.groups[index].write(mine.finals, len(mine.ends), observation)
        self._episodes.end_part(index, row, step, terminated, column, mine.rewards[step, row])

    def _replace(self, column: int, error: BaseException, step: int) -> None:
        """Replace a sub-environment that raised in a step. That step has no transition of it."""
        self._episodes.lose(column, error, lambda agent_row: step)
        self._not_taken += 1
        for _, index, row in self._live[column]:
            self._writer.groups[index].note(row, step, NOBODY)
        self._begin_episode(column, None)
        self._note_who(column, step + 1)

    def _note_who(self, column: int, step: int) -> None:
        """Write who acts in the rows of a sub-environment from this step on."""
        self._changed = True
        for agent_row in self._assignments.agent_rows[column].values():
            now = int(self._assignments.groups[agent_row.group].who[agent_row.row])
            self._writer.groups[agent_row.group].note(agent_row.row, step, now)

    def _change(self, column: int, step: int, found: Any, ended: Sequence[str]) -> None:
        """Handle agents that have gone or come. If no agent is left, begin another episode."""
        assignments, agents = self._assignments, list(self._envs[column].agents)
        live, names = self._live[column], assignments.names[column]
        for agent, index, row in live:
            if agent not in ended and agent not in agents:
                self._end(index, row, step, found[0][agent], False, column)
        if agents:
            self._activate(column, agents, *found)
        else:
            if self._has_state:
                self._write_final_state(column)
            self._episodes.end(column, step, 0.0)
            self._begin_episode(column, None)
        if self._live[column] != live or assignments.names[column] != names:
            self._note_who(column, step + 1)

    def _begin_episode(self, column: int, seed: int | None) -> None:
        found = self._episodes.reset(column, seed)
        self._activate(column, list(self._envs[column].agents), *found)

    def _activate(self, column: int, agents: list[str], observations: Any, infos: Mapping[str, Any]) -> None:
        """Activate agents that were not active before."""
        live = self._live_of(column, agents)
        for agent, index, row in live:
            group = self._assignments.groups[index]
            if group.who[row] == NOBODY:
                if agent not in observations:
                    env_id = self._assignments.env_ids[column]
                    raise ObservationError(
                        f"each active agent must have an observation, but agent {agent!r} of env_id {env_id} has none"
                    )
                self._assignments.activate(index, row)
                group.write(self._rows[index], row, observations[agent])
                if self._infos[index]:
                    write_seen(self._infos[index], self._seen[index], row, infos.get(agent, {}))
        self._live[column], self._agents[column] = live, agents
        if self._has_state:
            self._write_state(column, self._rows[0], column)

    def _live_of(self, column: int, agents: list[str]) -> list[tuple[str, int, int]]:
        if agents == self._assignments.agents:  # The usual case at the beginning of an episode.
            return self._everybody[column]
        return [self._assignments.agent_row_of(column, agent)[:] for agent in agents]

    def _write_final_state(self, column: int) -> None:
        """Write the state if the episode was truncated: some environments have none after a termination."""
        mine = self._writer.groups[0]
        if self._episodes.truncated[column]:
            self._write_state(column, mine.finals, len(mine.ends))
        else:
            for block in mine.finals:
                block[len(mine.ends)] = 0

    def _write_state(self, column: int, rows: Any, row: int) -> None:
        self._assignments.groups[0].write(rows, row, self._envs[column].state())
