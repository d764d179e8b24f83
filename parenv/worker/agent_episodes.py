"""Begin and end the episodes of agents, and replace environments that raise, for all row loops of agents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parenv.envs.agents import QuestionedEnv, check_has_agents, spaces_of, with_agents
from parenv.envs.targets import End
from parenv.errors import ObservationError
from parenv.experience.endings import ENVIRONMENT_ERROR, INDEX
from parenv.memory.agent_layout import NOBODY
from parenv.memory.status_slot import StatusSlot, code
from parenv.worker.agent_assignments import AgentAssignments, AgentRow
from parenv.worker.replacements import Replacements
from parenv.worker.writing import AgentWriter

_LOST_BY = INDEX[ENVIRONMENT_ERROR]


class EpisodesOfAgents:
    """The sub-environments of several agents, and their episodes in progress.

    Args:
        envs: Sub-environments.
        assignments: Their agents and policies.
        status: Status slot of the worker.
        first: Return values of resets that have been done already.

    Attributes:
        writer: Writer of the rollout in progress.
        steps: ``step`` of each sub-environment.
        step_codes: Code of a step of each sub-environment, for the status slot.
        truncated: Whether an agent's part of the present episode was truncated, for each sub-environment.
        replacements: Factory of environments that replace those that raise. ``None``: the worker raises the error.
    """

    writer: AgentWriter
    replacements: Replacements | None = None

    def __init__(
        self, envs: list[Any], assignments: AgentAssignments, status: StatusSlot, first: Sequence[Any] = ()
    ) -> None:
        self.envs, self.assignments, self.status = envs, assignments, status
        self._tally = assignments.groups[0].tally
        self._first = dict(enumerate(first))
        self.steps = [env.step for env in envs]
        self.step_codes, self._reset_codes = (
            [code(name, i) for i in assignments.env_ids] for name in ("step", "reset")
        )
        self.truncated = [False] * len(envs)

    def resume(self, truncated: Sequence[bool]) -> None:
        """Continue the episodes of a restored state instead of those that resets have begun already."""
        self._first.clear()
        self.truncated = list(truncated)

    def each(self, name: str, function: Callable[[Any], Any], columns: Sequence[int]) -> list[Any]:
        """Apply a function to some of the sub-environments."""
        results = []
        for column in columns:
            self.status.begin("call", self.assignments.env_ids[column])
            results.append(function(QuestionedEnv(self.envs[column])))
        return results

    def replace(self, column: int, env: Any) -> None:
        """Replace the environment of a column, and close the old one."""
        with contextlib.suppress(Exception):
            self.envs[column].close()
        check_has_agents(env, self.assignments.env_ids[column])
        self.envs[column] = with_agents(env)
        self.steps[column] = self.envs[column].step
        spaces_of(self.envs, self.assignments.env_ids[0])

    def begin_writing(self, writer: AgentWriter, carries: Callable[[int], dict[str, Any]]) -> None:
        """Begin a rollout. ``carries`` returns the carry of each policy of a group before the first row."""
        self.writer = writer
        for policy in self.assignments.policy_rows.values():
            policy.begin()
        for group, mine in zip(self.assignments.groups, writer.groups, strict=True):
            mine.begin_rows(group.observed, group.seen, group.who, group.restarted)
            group.restarted[:] = False
        for index, mine in enumerate(writer.groups):
            mine.write_carry(carries(index))
        writer.versions[:] = self.assignments.versions()

    def carries(self, index: int) -> dict[str, Any]:
        """Return the carry of each policy of a group. Rows of other policies have the initial carry."""
        who = self.assignments.groups[index].who
        return {
            policy.name: policy.carry_with_initial(np.flatnonzero(who != policy.index).tolist())
            for policy in self.assignments.policy_rows.values()
            if policy.group == index
        }

    def finish_writing(self) -> None:
        """Write the ends of the rollout, and the episodes in progress."""
        self.status.begin("commit")
        for policy in self.assignments.policy_rows.values():
            policy.own_carry()
        for group, mine in zip(self.assignments.groups, self.writer.groups, strict=True):
            mine.finish(group.assigned)
        _write_open(self.assignments, self.writer.groups[0].own["open", 0])

    def reset(self, column: int, seed: int | None) -> Any:
        """Reset a sub-environment and assign its agents; return what the reset returned."""
        env_id = self.assignments.env_ids[column]
        self.status.cell[0] = self._reset_codes[column]
        if column in self._first:
            found = self._first.pop(column)
        else:
            try:
                found = self.envs[column].reset(seed=seed)
            except (Exception, SystemExit) as error:
                found = self._replacement_of(column, error)
        if not self.envs[column].agents:
            raise ObservationError(f"reset() must leave at least one agent, but env_id {env_id} has none")
        self.assignments.begin_episode(column)
        self.truncated[column] = False
        return found

    def lose(self, column: int, error: BaseException, counts: Callable[[AgentRow], int]) -> None:
        """Replace an environment that raised, and truncate its episode after its last complete step.

        If that step is in the previous rollout, the rows are flagged in ``restarted``. ``counts`` returns the number of
        complete steps of an agent row in this rollout.
        """
        self._first[column] = self._replacement_of(column, error)
        for agent_row in (*self.assignments.agent_rows[column].values(), AgentRow("", 0, column)):
            group, mine = self.assignments.groups[agent_row.group], self.writer.groups[agent_row.group]
            count = counts(agent_row)
            if group.who[agent_row.row] == NOBODY:
                continue
            if not count:
                self._tally.returns[column] += group.tally.returns[agent_row.row] if agent_row.group else 0.0
                policy_rows = [
                    policy for policy in self.assignments.policy_rows.values() if policy.group == agent_row.group
                ]
                mine.begin_anew(agent_row.row, {policy.name: policy.initial for policy in policy_rows})
            elif mine.goes_on(agent_row.row, count - 1):
                mine.keep_final(agent_row.row, count)
                self.end_part(agent_row.group, agent_row.row, count - 1, False, column, lost_by=_LOST_BY)
            if agent_row.group:
                group.who[agent_row.row] = NOBODY

    def end_part(
        self,
        index: int,
        row: int,
        step: int,
        terminated: bool,
        column: int,
        reward: float | None = None,
        lost_by: int = 0,
    ) -> None:
        """End an agent's part of an episode, or the whole episode. The final observation has been written already.

        ``reward`` is the reward of the last step if that is not counted yet. ``lost_by`` is the reason of an end by
        which the episode is lost.
        """
        group = self.assignments.groups[index]
        seconds, _ = group.tally.end(row, None)
        episode_return, length = float(group.tally.returns[row]), int(group.tally.lengths[row])
        if reward is not None:
            episode_return, length = episode_return + float(reward), length + 1
        end = End(step, row, terminated, not terminated, seconds, lost_by=lost_by)
        self.writer.groups[index].add_end(end, episode_return, length, self.assignments.numbers[column])
        self.truncated[column] |= not terminated
        if index:
            group.who[row] = NOBODY
            self._tally.returns[column] += episode_return

    def end(self, column: int, step: int, reward: float | None = None) -> None:
        """End the whole episode of a sub-environment."""
        self.end_part(0, column, step, not self.truncated[column], column, reward)

    def _replacement_of(self, column: int, error: BaseException) -> Any:
        """Replace an environment that raised; return what the reset of the new one returned."""
        if self.replacements is None:
            raise error
        return self.replacements.make(column, error)


def _write_open(assignments: AgentAssignments, records: Any) -> None:
    """Write the episodes in progress. The return of an agent is added to the others when its part ends."""
    envs, *agents = assignments.groups
    envs.tally.write(records)
    records["number"] = assignments.numbers
    for group in agents:
        returns = np.where(group.who == NOBODY, 0.0, group.tally.returns)
        records["return"] += returns.reshape(len(records), -1).sum(1)
