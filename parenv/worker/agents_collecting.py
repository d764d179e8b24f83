"""Collecting where several agents act: what both ways of doing so have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from parenv.envs.agents import QuestionedEnv, check_has_agents, spaces_of, with_agents
from parenv.envs.targets import End
from parenv.errors import ObservationError
from parenv.experience.agent_rollouts import RolloutsByPolicy
from parenv.experience.agents_assembly import assemble_agents
from parenv.memory.agent_layout import NOBODY
from parenv.memory.status_slot import StatusSlot, code
from parenv.worker.agent_assignments import AgentAssignments
from parenv.worker.agent_writing import AgentWriter
from parenv.worker.collecting import Seconds
from parenv.worker.group_rows import AgentRow
from parenv.worker.replacing import Replacements


class AgentsCollector:
    """Sub-environments of several agents under way, with all that lasts from one rollout to the next.

    Args:
        envs: the sub-environments.
        assignments: their agents.
        progress: where to say what is going on.
        first: what the resets returned that have been done already.

    Attributes:
        env_steps: in the last rollout.
        replacements: makes another environment in the place of one that raises; ``None``: its error is the worker's.
    """

    _writer: AgentWriter
    replacements: Replacements | None = None

    def __init__(
        self, envs: list[Any], assignments: AgentAssignments, progress: StatusSlot, first: Sequence[Any] = ()
    ) -> None:
        self.envs, self.assignments, self._progress = envs, assignments, progress
        self.env_steps = 0
        self._first = dict(enumerate(first))
        self._steps = [env.step for env in self.envs]
        self._step_codes, self._reset_codes = (
            [code(name, i) for i in assignments.env_ids] for name in ("step", "reset")
        )
        self._truncated = [False] * len(self.envs)

    def begin(self, seeds: Sequence[int | None]) -> None:
        """Begin an episode in every sub-environment."""
        self.assignments.clear()
        self._begin_episodes(enumerate(seeds))

    def get_state(self) -> dict[str, Any]:
        """Everything that lasts from one rollout to the next, beside the environments, as plain data."""
        return {"roster": self.assignments.get_state(), "truncated": list(self._truncated)}

    def set_state(self, state: Mapping[str, Any], seeds: Mapping[int, int], broken: bool) -> None:
        """Go on where another collector was when it had this state; its sub-environments are there already.

        Args:
            state: of :meth:`get_state`.
            seeds: for the sub-environments that begin anew.
            broken: whether what follows does not follow what was delivered last.
        """
        self._first.clear()
        self.assignments.set_state(state["roster"], list(seeds), broken)
        self._truncated = list(state["truncated"])
        self._begin_episodes(seeds.items())

    def collect(self, writer: AgentWriter) -> Seconds:
        """Fill a rollout.

        Args:
            writer: where to.

        Raises:
            StopCollectingError: the driver wants this worker to end.
        """
        raise NotImplementedError

    def rollout(self, writer: AgentWriter, worker: int, policy_version: int) -> RolloutsByPolicy:
        """What was written last, of this worker alone."""
        own = [group.own for group in writer.groups]
        env_ids, first = np.array(self.assignments.env_ids), writer.groups[0].columns.first
        about = (env_ids, worker, policy_version, self.env_steps, first)
        return assemble_agents(self.assignments.spec, own, [len(self.envs)], self.assignments.playing(), *about)

    def each(self, name: str, function: Callable[[Any], Any], columns: Sequence[int]) -> list[Any]:
        """Apply a function to some of the environments, as what a user's questions are put to."""
        results = []
        for column in columns:
            self._progress.begin("call", self.assignments.env_ids[column])
            results.append(function(QuestionedEnv(self.envs[column])))
        return results

    def replace(self, column: int, env: Any) -> None:
        """Put another environment into a column, and close the one that was there."""
        with contextlib.suppress(Exception):
            self.envs[column].close()
        check_has_agents(env, self.assignments.env_ids[column])
        self.envs[column] = with_agents(env)
        self._steps[column] = self.envs[column].step
        spaces_of(self.envs, self.assignments.env_ids[0])

    def take_replaced(self) -> list[list[Any]]:
        """``[env_id, doing, exception as text]`` of every sub-environment that was replaced since the last time."""
        return [] if self.replacements is None else self.replacements.take_causes()

    def _begin_episodes(self, seeds: Iterable[tuple[int, int | None]]) -> None:
        for column, seed in seeds:
            self._begin_episode(column, seed)
        self.assignments.begin_counting()
        self.assignments.share_out()

    def _begin_episode(self, column: int, seed: int | None) -> None:
        """Begin the next episode of a sub-environment, up to the first observations."""
        raise NotImplementedError

    def _carries(self, index: int) -> dict[str, Any]:
        """The carry of each policy of a group before the first row: of its own rows; the others begin anew with it."""
        who = self.assignments.groups[index].who
        return {
            side.name: side.carry_with_initial(np.flatnonzero(who != side.index).tolist())
            for side in self.assignments.sides.values()
            if side.group == index
        }

    def _begin_writing(self, writer: AgentWriter) -> None:
        self._writer = writer
        for side in self.assignments.sides.values():
            side.begin()
        for group, mine in zip(self.assignments.groups, writer.groups, strict=True):
            mine.begin_rows(group.observed, group.seen, group.who, group.restarted)
            group.restarted[:] = False
        for index, mine in enumerate(writer.groups):
            mine.write_carry(self._carries(index))
        writer.versions[:] = self.assignments.versions()

    def _finish_writing(self, writer: AgentWriter) -> None:
        self._progress.begin("commit")
        for side in self.assignments.sides.values():
            side.own()
        for group, mine in zip(self.assignments.groups, writer.groups, strict=True):
            mine.finish(group.assigned)

    def _reset(self, column: int, seed: int | None) -> Any:
        """Reset a sub-environment and draw who plays; what it returned."""
        env_id = self.assignments.env_ids[column]
        self._progress.cell[0] = self._reset_codes[column]
        if column in self._first:
            found = self._first.pop(column)
        else:
            try:
                found = self.envs[column].reset(seed=seed)
            except (Exception, SystemExit) as error:
                found = self._made_anew(column, error)
        if not self.envs[column].agents:
            raise ObservationError(f"env_id {env_id} has no agents after its reset")
        self.assignments.begin_episode(column)
        self._truncated[column] = False
        return found

    def _made_anew(self, column: int, error: BaseException) -> Any:
        """What the reset of another environment returned, which is in the place of one that raised."""
        if self.replacements is None:
            raise error
        return self.replacements.make(column, error)

    def _break_off(self, column: int, counts: Callable[[AgentRow], int], uncounted: int) -> None:
        """What is under way in a sub-environment ends as truncated where it was complete last.

        Where that lies in the rollout before, it is said that this one does not follow.

        Args:
            column: which.
            counts: how many steps of what is in a agent row are complete in this rollout.
            uncounted: steps of this rollout that are not in lengths yet.
        """
        for agent_row in (*self.assignments.agent_rows[column].values(), AgentRow("", 0, column)):
            group, mine, count = (
                self.assignments.groups[agent_row.group],
                self._writer.groups[agent_row.group],
                counts(agent_row),
            )
            if group.who[agent_row.row] == NOBODY:
                continue
            if not count:
                mine.begin_anew(agent_row.row, self._initial_carries(agent_row.group))
            elif mine.goes_on(agent_row.row, count - 1):
                mine.keep_final(agent_row.row, count)
                self._end_part(agent_row.group, agent_row.row, count - 1, False, column, uncounted)
            if agent_row.group:
                group.who[agent_row.row] = NOBODY

    def _initial_carries(self, index: int) -> dict[str, Any]:
        """The carry of each policy of a group at the beginning of an episode."""
        return {side.name: side.initial for side in self.assignments.sides.values() if side.group == index}

    def _end_part(
        self, index: int, row: int, step: int, terminated: bool, column: int, uncounted: int = 0, reward: float = 0.0
    ) -> None:
        """An agent's part of an episode ends, or all of it; what was observed last is kept already.

        Args:
            index: of the group.
            row: of it.
            step: the last one.
            terminated: or else truncated.
            column: of the sub-environment.
            uncounted: steps of this rollout that are not in lengths yet.
            reward: of the last step, if it is not in returns yet.
        """
        group = self.assignments.groups[index]
        seconds, _ = group.clocks.end(row, None)
        episode_return, length = float(group.returns[row] + reward), int(group.lengths[row]) + uncounted
        end = End(step, row, terminated, not terminated, seconds)
        self._writer.groups[index].add_end(end, episode_return, length, self.assignments.numbers[column])
        self._truncated[column] |= not terminated
        if index:
            group.who[row] = NOBODY
            self.assignments.groups[0].returns[column] += episode_return

    def _end_episode(self, column: int, step: int, uncounted: int = 0) -> None:
        """No agent of a sub-environment is left."""
        self._end_part(0, column, step, not self._truncated[column], column, uncounted)
