"""The row loop of AEC agents, which act one after another: the steps of a row are its agent's own turns."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from parenv.envs.infos import Found, write_seen
from parenv.envs.returned import check_flags, explain_step
from parenv.errors import ObservationError, ParenvError
from parenv.memory.agent_layout import NOBODY
from parenv.memory.trees import as_array, copy_as, map_trees
from parenv.worker.agent_assignments import AgentRow
from parenv.worker.agent_episodes import EpisodesOfAgents
from parenv.worker.single import ACT
from parenv.worker.single_agent_collector import Seconds, StopCollectingError
from parenv.worker.writing import AgentWriter, GroupWriter


class Pending:
    """The turns of a group's rows whose reward is not complete. It is complete at the agent's next turn.

    Args:
        num_rows: Number of rows of the group.

    Attributes:
        is_open: Whether the row has a turn without a complete reward, bool ``[R]``.
        counts: Number of complete turns of each row in this rollout, ``[R]``.
        versions: Version that chose the action, if a previous rollout has it; otherwise -1. ``[R]``.
    """

    def __init__(self, num_rows: int) -> None:
        self.is_open = np.zeros(num_rows, bool)
        self.counts = np.zeros(num_rows, np.int64)
        self.versions = np.full(num_rows, -1, np.int64)
        self._rows = np.arange(num_rows)
        self._kept: dict[str, list[Any]] = {}

    def keep(self, writer: GroupWriter) -> tuple[list[Any], dict[str, Any]]:
        """Keep incomplete turns at the end of a rollout; return the first observations and infos of the next one."""
        last = np.minimum(self.counts, len(writer.policies) - 1)
        self._kept = {
            name: [block[last, self._rows] for block in writer.blocks[name]] for name in ("actions", "extras")
        }
        observed = [block[self.counts, self._rows] for block in writer.blocks["observations"]]
        return observed, writer.infos.seen_at(self.counts, self._rows)

    def get_state(self) -> dict[str, Any]:
        """Return the turns as plain data."""
        return {"there": self.is_open.copy(), "versions": self.versions.copy(), "kept": self._kept}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`get_state`."""
        self.is_open[:], self.versions[:], self._kept = state["there"], state["versions"], dict(state["kept"])

    def put_back(self, writer: GroupWriter) -> None:
        """Begin a rollout with the kept turns."""
        self.counts[:] = 0
        for name, kept in self._kept.items():
            for block, values in zip(writer.blocks[name], kept, strict=True):
                block[0][self.is_open] = values[self.is_open]
        writer.first_versions[self.is_open] = self.versions[self.is_open]

    def blank(self, writer: GroupWriter, who: Any) -> None:
        """Clear values of earlier rollouts in the unused part of the slot."""
        steps = np.arange(len(writer.policies) + 1)[:, None]
        unused = steps >= self.counts + (who != NOBODY)
        for block in (*writer.blocks["observations"], *writer.blocks["seen"]):
            block[unused] = 0
        writer.policies[steps[:-1] >= self.counts] = NOBODY
        for block in writer.blocks["infos"]:
            block[steps[:-1] >= self.counts] = 0
        for block in (*writer.blocks["actions"], *writer.blocks["extras"]):
            block[(steps >= self.counts + self.is_open)[:-1]] = 0


class AECLoop:
    """Row loop of sub-environments in which one agent acts at a time.

    A rollout ends when a row is full. Turns without a complete reward are the first turns of the next rollout.

    Args:
        episodes: Sub-environments.
    """

    _writer: AgentWriter

    def __init__(self, episodes: EpisodesOfAgents) -> None:
        self._episodes, self._envs, self._status = episodes, episodes.envs, episodes.status
        self._assignments = episodes.assignments
        self._pending = [Pending(len(group.who)) for group in self._assignments.groups]
        self._turns: list[Any] = [None] * len(self._envs)
        self._taken = [0] * len(self._envs)
        self._is_full = self._is_writing = False
        self._carry_before: dict[int, Any] = {}

    def get_state(self) -> dict[str, Any]:
        """Return the selected agents and the incomplete turns."""
        policy_rows = self._assignments.policy_rows
        before = {
            policy_rows[i].name: map_trees(as_array, c) for i, c in self._carry_before.items() if i in policy_rows
        }
        return {
            "turns": [agent_row.agent for agent_row in self._turns],
            "pending": [pending.get_state() for pending in self._pending],
            "carry_before": before,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the selected agents and the incomplete turns."""
        for pending, saved in zip(self._pending, state["pending"], strict=True):
            pending.set_state(saved)
        self._turns = [self._assignments.agent_row_of(column, agent) for column, agent in enumerate(state["turns"])]
        for policy in self._assignments.policy_rows.values():
            if policy.name in state["carry_before"]:
                self._carry_before[policy.index] = map_trees(copy_as, policy.carry, state["carry_before"][policy.name])

    def begin_episodes(self, seeds: Iterable[tuple[int, int | None]]) -> None:
        """Begin an episode in some sub-environments."""
        for column, seed in seeds:
            self._begin_episode(column, seed)

    def fill(self, writer: AgentWriter) -> tuple[Seconds, int]:
        """Fill a rollout until a row is full; return the seconds, and the number of env steps.

        Raises:
            StopCollectingError: The driver wants this worker to end.
        """
        clock, status = time.perf_counter, self._status
        self._writer = writer
        self._episodes.begin_writing(writer, self._carries)
        self._is_writing, self._is_full = True, False
        self._taken = [0] * len(self._envs)
        for pending, mine in zip(self._pending[1:], writer.groups[1:], strict=True):
            pending.put_back(mine)
        environment = acting = 0.0
        while not self._is_full:
            if status.closing[0]:
                raise StopCollectingError
            began = clock()
            status.cell[0] = ACT
            status.heartbeat[0] += 1
            actions = self._act()
            acted = clock()
            for column, action in enumerate(actions):
                self._take_turn(column, action)
            acting += acted - began
            environment += clock() - acted
        self._end_writing(writer)
        return Seconds(environment, acting), sum(self._taken)

    def _act(self) -> list[Any]:
        """Act for the selected agent of every sub-environment, once per policy; return the actions by column."""
        actions: list[Any] = [None] * len(self._envs)
        together: defaultdict[int, list[int]] = defaultdict(list)
        for column, agent_row in enumerate(self._turns):
            together[int(self._assignments.groups[agent_row.group].who[agent_row.row])].append(column)
        for index, columns in together.items():
            policy = self._assignments.policy_rows[index]
            mine, pending = self._writer.groups[policy.group], self._pending[policy.group]
            rows = np.array([self._turns[column].row for column in columns])
            steps = pending.counts[rows]
            if policy.carry is not None:
                before = self._carry_before.get(index, policy.carry)
                self._carry_before[index] = policy.actor.with_rows(before, policy.carry, rows.tolist())
            observed = [block[steps, rows] for block in mine.blocks["observations"]]
            written = policy.act_for(observed, rows, mine, steps)
            pending.is_open[rows], pending.versions[rows] = True, -1
            each = self._assignments.groups[policy.group].split(written)
            for column, action in zip(columns, each, strict=True):
                actions[column] = action
        return actions

    def _take_turn(self, column: int, action: Any) -> None:
        self._status.cell[0] = self._episodes.step_codes[column]
        try:
            self._episodes.steps[column](action)
            self._taken[column] += 1
            self._assignments.groups[0].tally.lengths[column] += 1
            self._next_turn(column)
        except ParenvError:
            raise
        except (Exception, SystemExit) as error:
            self._replace(column, error)

    def _replace(self, column: int, error: BaseException) -> None:
        """Replace a sub-environment that raised. Its incomplete turns are dropped."""
        self._episodes.lose(column, error, self._complete_steps)
        self._begin_episode(column, None)

    def _complete_steps(self, agent_row: AgentRow) -> int:
        return (
            int(self._pending[agent_row.group].counts[agent_row.row]) if agent_row.group else self._taken[agent_row.row]
        )

    def _next_turn(self, column: int) -> None:
        """Continue until an agent that can act is selected. Its last turn is complete then."""
        while True:
            env = self._envs[column]
            if not env.agents:
                if not self._is_writing:
                    env_id = self._assignments.env_ids[column]
                    raise ObservationError(f"reset() must leave an agent that can act, but env_id {env_id} has none")
                self._truncate_left(column)
                self._episodes.end(column, self._taken[column] - 1)
                self._episodes.reset(column, None)
                self._assignments.begin_counting()
                continue
            agent_row = self._assignments.agent_row_of(column, env.agent_selection)
            observation, reward, terminated, truncated, info = env.last()
            self._complete(agent_row, reward, info)
            try:
                if not (terminated or truncated):
                    break
                check_flags((terminated, truncated))
            except Exception as error:
                self._explain(agent_row, error, (None, 0.0, terminated, truncated, info))
                raise
            self._end_turns(agent_row, observation, bool(terminated), column)
            env.step(None)
        self._turns[column] = agent_row
        self._await(agent_row, observation, info)

    def _complete(self, agent_row: AgentRow, reward: Any, info: Found) -> None:
        """Complete the last turn of an agent with its reward."""
        group, pending, row = self._assignments.groups[agent_row.group], self._pending[agent_row.group], agent_row.row
        if not pending.is_open[row]:
            return
        mine, count = self._writer.groups[agent_row.group], pending.counts[row]
        try:
            earned = float(reward)
        except Exception as error:
            self._explain(agent_row, error, (None, reward, False, False, info))
            raise
        mine.rewards[count, row], mine.policies[count, row] = earned, group.who[row]
        if mine.infos:
            mine.infos.write(int(count), row, info)
        pending.is_open[row] = False
        pending.counts[row] += 1
        group.tally.returns[row] += earned
        group.tally.lengths[row] += 1

    def _explain(self, agent_row: AgentRow, error: Exception, returned: Any) -> None:
        explain_step(error, returned, self._status.env_id, agent_row.agent)

    def _end_turns(self, agent_row: AgentRow, observation: Any, terminated: bool, column: int) -> None:
        """End the part of an agent that is gone with its last turn, if it had one."""
        group, row = self._assignments.groups[agent_row.group], agent_row.row
        self._episodes.truncated[column] |= not terminated  # Also for an agent that has never had a turn.
        if group.who[row] == NOBODY:
            return
        mine, step = self._writer.groups[agent_row.group], int(self._pending[agent_row.group].counts[row]) - 1
        group.write(mine.finals, len(mine.ends), observation)
        self._episodes.end_part(agent_row.group, row, step, terminated, column)

    def _truncate_left(self, column: int) -> None:
        """Truncate the agents whose end the environment did not report. Their last turns are complete now."""
        env = self._envs[column]
        # PettingZoo's last() reads these sums, but only for the agent whose turn it is.
        rewards, infos = getattr(env, "_cumulative_rewards", {}), getattr(env, "infos", {})
        for agent, agent_row in self._assignments.agent_rows[column].items():
            if self._assignments.groups[agent_row.group].who[agent_row.row] != NOBODY:
                self._complete(agent_row, rewards.get(agent, 0.0), infos.get(agent, {}))
                self._end_turns(agent_row, env.observe(agent), False, column)

    def _await(self, agent_row: AgentRow, observation: Any, info: Found) -> None:
        """Write the observation of the selected agent."""
        group, pending = self._assignments.groups[agent_row.group], self._pending[agent_row.group]
        if group.who[agent_row.row] == NOBODY:
            self._assignments.activate(agent_row.group, agent_row.row)
            self._assignments.begin_counting()
        if not self._is_writing:
            group.write(group.observed, agent_row.row, observation)
            write_seen(self._assignments.spec.groups[agent_row.group].infos, group.seen, agent_row.row, info)
            return
        mine, count = self._writer.groups[agent_row.group], pending.counts[agent_row.row]
        group.write(mine.observations[count], agent_row.row, observation)
        mine.infos.write_first(count, agent_row.row, info)
        self._is_full |= bool(count == self._assignments.spec.rollout_length)

    def _begin_episode(self, column: int, seed: int | None) -> None:
        for agent_row in self._assignments.agent_rows[column].values():
            self._pending[agent_row.group].is_open[agent_row.row] = False
        self._episodes.reset(column, seed)
        self._assignments.begin_counting()
        self._next_turn(column)

    def _end_writing(self, writer: AgentWriter) -> None:
        playing = self._assignments.playing()
        for group, pending, mine in zip(
            self._assignments.groups[1:], self._pending[1:], writer.groups[1:], strict=True
        ):
            pending.blank(mine, group.who)
            group.observed, group.seen = pending.keep(mine)
            for row in np.flatnonzero(pending.is_open & (pending.versions < 0)):
                pending.versions[row] = playing[int(group.who[row])].version
        self._episodes.finish_writing()
        self._is_writing = False

    def _carries(self, index: int) -> dict[str, Any]:
        """Return the carry before the first turn of every row. A turn that was kept began in the previous rollout."""
        found = self._episodes.carries(index)
        for policy in self._assignments.policy_rows.values():
            if policy.index in self._carry_before and policy.group == index:
                rows = np.flatnonzero(self._pending[index].is_open).tolist()
                found[policy.name] = policy.actor.with_rows(found[policy.name], self._carry_before[policy.index], rows)
        return found
