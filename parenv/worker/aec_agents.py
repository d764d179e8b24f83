"""Collecting where agents act one after the other: the time of a row is its agent's own turns."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parenv.envs.infos import Found, write_seen
from parenv.errors import ObservationError, ParenvError
from parenv.memory.agent_layout import NOBODY
from parenv.memory.trees import as_array, copy_as, map_trees
from parenv.worker.agent_writing import AgentWriter, GroupWriter
from parenv.worker.agents_collecting import AgentsCollector
from parenv.worker.collecting import Seconds, StopCollectingError
from parenv.worker.group_rows import AgentRow
from parenv.worker.single import ACT


class Pending:
    """The turns of a group's rows whose reward is still to come: it is complete at the agent's next turn.

    Args:
        num_rows: of the group.

    Attributes:
        there: bool ``[R]``.
        counts: turns of each row that are complete in this rollout, ``[R]``.
        versions: that chose the action, where it was chosen in a rollout before, else -1.
    """

    def __init__(self, num_rows: int) -> None:
        self.there = np.zeros(num_rows, bool)
        self.counts = np.zeros(num_rows, np.int64)
        self.versions = np.full(num_rows, -1, np.int64)
        self._rows = np.arange(num_rows)
        self._kept: dict[str, list[Any]] = {}

    def keep(self, writer: GroupWriter) -> tuple[list[Any], dict[str, Any]]:
        """Keep what is not complete at the end of a rollout; observations, and infos, that the next one begins with."""
        last = np.minimum(self.counts, len(writer.policies) - 1)
        self._kept = {
            name: [block[last, self._rows] for block in writer.blocks[name]] for name in ("actions", "extras")
        }
        observed = [block[self.counts, self._rows] for block in writer.blocks["observations"]]
        return observed, writer.infos.seen_at(self.counts, self._rows)

    def get_state(self) -> dict[str, Any]:
        """As plain data."""
        return {"there": self.there.copy(), "versions": self.versions.copy(), "kept": self._kept}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Be what another one was that had this state."""
        self.there[:], self.versions[:], self._kept = state["there"], state["versions"], dict(state["kept"])

    def put_back(self, writer: GroupWriter) -> None:
        """Begin a rollout with it."""
        self.counts[:] = 0
        for name, kept in self._kept.items():
            for block, values in zip(writer.blocks[name], kept, strict=True):
                block[0][self.there] = values[self.there]
        writer.first_versions[self.there] = self.versions[self.there]

    def blank(self, writer: GroupWriter, who: Any) -> None:
        """Leave nothing of former rollouts behind what this one has."""
        steps = np.arange(len(writer.policies) + 1)[:, None]
        unused = steps >= self.counts + (who != NOBODY)
        for block in (*writer.blocks["observations"], *writer.blocks["seen"]):
            block[unused] = 0
        writer.policies[steps[:-1] >= self.counts] = NOBODY
        for block in writer.blocks["infos"]:
            block[steps[:-1] >= self.counts] = 0
        for block in (*writer.blocks["actions"], *writer.blocks["extras"]):
            block[(steps >= self.counts + self.there)[:-1]] = 0


class AECAgentsCollector(AgentsCollector):
    """Where one agent of a sub-environment acts at a time.

    A rollout ends when a row is full. Turns whose reward is still to come then are the first of the next rollout.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._pending = [Pending(len(group.who)) for group in self.assignments.groups]
        self._turns: list[Any] = [None] * len(self.envs)
        self._taken = [0] * len(self.envs)
        self._is_full = self._is_writing = False
        self._carry_before: dict[int, Any] = {}

    def begin(self, seeds: Sequence[int | None]) -> None:
        """Begin an episode in every sub-environment."""
        for pending in self._pending:
            pending.there[:] = False
            pending.counts[:] = 0
        super().begin(seeds)

    def get_state(self) -> dict[str, Any]:
        """With whose turn it is, and what is still to come of the last ones."""
        sides = self.assignments.sides
        before = {sides[i].name: map_trees(as_array, c) for i, c in self._carry_before.items() if i in sides}
        return {
            **super().get_state(),
            "turns": [agent_row.agent for agent_row in self._turns],
            "pending": [pending.get_state() for pending in self._pending],
            "carry_before": before,
        }

    def set_state(self, state: Mapping[str, Any], seeds: Mapping[int, int], broken: bool) -> None:
        """Go on; see above."""
        for pending, saved in zip(self._pending, state["pending"], strict=True):
            pending.set_state(saved)
        self._turns = [self.assignments.agent_row_of(column, agent) for column, agent in enumerate(state["turns"])]
        for side in self.assignments.sides.values():
            if side.name in state["carry_before"]:
                self._carry_before[side.index] = map_trees(copy_as, side.carry, state["carry_before"][side.name])
        for column in seeds:
            for agent_row in self.assignments.agent_rows[column].values():
                self._pending[agent_row.group].there[agent_row.row] = False
        super().set_state(state, seeds, broken)

    def collect(self, writer: AgentWriter) -> Seconds:
        """Fill a rollout until a row is full."""
        clock, progress = time.perf_counter, self._progress
        self._begin_writing(writer)
        self._is_writing, self._is_full = True, False
        self._taken = [0] * len(self.envs)
        for pending, mine in zip(self._pending[1:], writer.groups[1:], strict=True):
            pending.put_back(mine)
        environment = acting = 0.0
        while not self._is_full:
            if progress.closing[0]:
                raise StopCollectingError
            began = clock()
            progress.cell[0] = ACT
            progress.heartbeat[0] += 1
            actions = self._act()
            acted = clock()
            for column, action in enumerate(actions):
                self._take_turn(column, action)
            acting += acted - began
            environment += clock() - acted
        self._end_writing(writer)
        return Seconds(environment, acting)

    def _act(self) -> list[Any]:
        """Have every agent act whose turn it is, those of one policy together; the actions by sub-environment."""
        actions: list[Any] = [None] * len(self.envs)
        together: defaultdict[int, list[int]] = defaultdict(list)
        for column, agent_row in enumerate(self._turns):
            together[int(self.assignments.groups[agent_row.group].who[agent_row.row])].append(column)
        for index, columns in together.items():
            side = self.assignments.sides[index]
            mine, pending = self._writer.groups[side.group], self._pending[side.group]
            rows = np.array([self._turns[column].row for column in columns])
            steps = pending.counts[rows]
            if side.carry is not None:
                before = self._carry_before.get(index, side.carry)
                self._carry_before[index] = side.actor.with_rows(before, side.carry, rows.tolist())
            observed = [block[steps, rows] for block in mine.blocks["observations"]]
            written = side.act_for(observed, rows, mine, steps)
            pending.there[rows], pending.versions[rows] = True, -1
            each = self.assignments.groups[side.group].split(written)
            for column, action in zip(columns, each, strict=True):
                actions[column] = action
        return actions

    def _take_turn(self, column: int, action: Any) -> None:
        self._progress.cell[0] = self._step_codes[column]
        try:
            self._steps[column](action)
            self._taken[column] += 1
            self.assignments.groups[0].lengths[column] += 1
            self._next_turn(column)
        except ParenvError:
            raise
        except (Exception, SystemExit) as error:
            self._replace(column, error)

    def _replace(self, column: int, error: BaseException) -> None:
        """A sub-environment has raised: turns whose reward was still to come are none; another is in its place."""
        self._first[column] = self._made_anew(column, error)
        self._break_off(column, self._complete_steps, 0)
        for agent_row in self.assignments.agent_rows[column].values():
            self._pending[agent_row.group].there[agent_row.row] = False
        self._begin_episode(column, None)

    def _complete_steps(self, agent_row: AgentRow) -> int:
        return (
            int(self._pending[agent_row.group].counts[agent_row.row]) if agent_row.group else self._taken[agent_row.row]
        )

    def _next_turn(self, column: int) -> None:
        """Go on until it is the turn of an agent that can act: what it did last is complete now."""
        while True:
            env = self.envs[column]
            if not env.agents:
                if not self._is_writing:
                    raise ObservationError(
                        f"no agent of env_id {self.assignments.env_ids[column]} can act after its reset"
                    )
                self._truncate_left(column)
                self._end_episode(column, self._taken[column] - 1)
                self._reset(column, None)
                self.assignments.begin_counting()
                continue
            agent_row = self.assignments.agent_row_of(column, env.agent_selection)
            observation, reward, terminated, truncated, info = env.last()
            self._complete(agent_row, reward, info)
            if not (terminated or truncated):
                break
            self._end_turns(agent_row, observation, bool(terminated), column)
            env.step(None)
        self._turns[column] = agent_row
        self._await(agent_row, observation, info)

    def _complete(self, agent_row: AgentRow, reward: Any, info: Found) -> None:
        """An agent's reward since its last turn is known."""
        group, pending, row = self.assignments.groups[agent_row.group], self._pending[agent_row.group], agent_row.row
        if not pending.there[row]:
            return
        mine, count = self._writer.groups[agent_row.group], pending.counts[row]
        mine.rewards[count, row], mine.policies[count, row] = reward, group.who[row]
        if mine.infos:
            mine.infos.write(int(count), row, info)
        pending.there[row] = False
        pending.counts[row] += 1
        group.returns[row] += float(reward)
        group.lengths[row] += 1

    def _end_turns(self, agent_row: AgentRow, observation: Any, terminated: bool, column: int) -> None:
        """An agent is gone; unless it has never had a turn, its part of the episode ends with its last one."""
        group, row = self.assignments.groups[agent_row.group], agent_row.row
        self._truncated[column] |= not terminated  # Also where it has never had a turn.
        if group.who[row] == NOBODY:
            return
        mine, step = self._writer.groups[agent_row.group], int(self._pending[agent_row.group].counts[row]) - 1
        group.write(mine.finals, len(mine.ends), observation)
        self._end_part(agent_row.group, row, step, terminated, column)

    def _truncate_left(self, column: int) -> None:
        """The episode has ended without an end of these agents, whose last turns are complete now."""
        env = self.envs[column]
        # PettingZoo's last() reads these sums, but only for the agent whose turn it is.
        rewards, infos = getattr(env, "_cumulative_rewards", {}), getattr(env, "infos", {})
        for agent, agent_row in self.assignments.agent_rows[column].items():
            if self.assignments.groups[agent_row.group].who[agent_row.row] != NOBODY:
                self._complete(agent_row, rewards.get(agent, 0.0), infos.get(agent, {}))
                self._end_turns(agent_row, env.observe(agent), False, column)

    def _await(self, agent_row: AgentRow, observation: Any, info: Found) -> None:
        """It is an agent's turn, and this is what it sees."""
        group, pending = self.assignments.groups[agent_row.group], self._pending[agent_row.group]
        if group.who[agent_row.row] == NOBODY:
            self.assignments.activate(agent_row.group, agent_row.row)
            self.assignments.begin_counting()
        if not self._is_writing:
            group.write(group.observed, agent_row.row, observation)
            write_seen(self.assignments.spec.groups[agent_row.group].spec.infos, group.seen, agent_row.row, info)
            return
        mine, count = self._writer.groups[agent_row.group], pending.counts[agent_row.row]
        group.write(mine.observations[count], agent_row.row, observation)
        mine.infos.write_first(count, agent_row.row, info)
        self._is_full |= bool(count == self.assignments.spec.rollout_length)

    def _begin_episode(self, column: int, seed: int | None) -> None:
        self._reset(column, seed)
        self.assignments.begin_counting()
        self._next_turn(column)

    def _end_writing(self, writer: AgentWriter) -> None:
        playing = self.assignments.playing()
        for group, pending, mine in zip(self.assignments.groups[1:], self._pending[1:], writer.groups[1:], strict=True):
            pending.blank(mine, group.who)
            group.observed, group.seen = pending.keep(mine)
            for row in np.flatnonzero(pending.there & (pending.versions < 0)):
                pending.versions[row] = playing[int(group.who[row])].version
        self.env_steps = sum(self._taken)
        self._finish_writing(writer)
        self._is_writing = False

    def _carries(self, index: int) -> dict[str, Any]:
        """The carry of each policy of a group before the first turn of every row, which may have been taken already."""
        found = super()._carries(index)
        for side in self.assignments.sides.values():
            if side.index in self._carry_before and side.group == index:
                rows = np.flatnonzero(self._pending[index].there).tolist()
                found[side.name] = side.actor.with_rows(found[side.name], self._carry_before[side.index], rows)
        return found
