"""Collect rollouts of several agents: the common part for parallel agents and AEC agents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.envs.agents import QuestionedEnv, check_has_agents, spaces_of, with_agents
from parenv.envs.seeding import random_state, set_random_state
from parenv.envs.targets import End
from parenv.errors import ObservationError
from parenv.experience.agent_rollouts import RolloutsByPolicy
from parenv.experience.assembly import assemble_agents
from parenv.experience.endings import ENVIRONMENT_ERROR, INDEX
from parenv.memory.agent_layout import NOBODY
from parenv.memory.status_slot import StatusSlot, code
from parenv.protocol.messages import Commit, Credit
from parenv.worker.agent_assignments import AgentAssignments, AgentRow
from parenv.worker.differentiator import Differentiated
from parenv.worker.policy_set import PolicySet
from parenv.worker.replacements import Replacements
from parenv.worker.single_agent_collector import Seconds
from parenv.worker.writing import AgentWriter, RolloutWriter

_LOST_BY = INDEX[ENVIRONMENT_ERROR]


class AgentsCollector:
    """Sub-environments of several agents, see :class:`~parenv.worker.collect_task.Collector`.

    Args:
        envs: Sub-environments.
        assignments: Their agents and policies.
        worker: Index of the worker.
        progress: Status slot of the worker.
        first: Return values of resets that have been done already.

    Attributes:
        env_steps: Number of env steps in the last rollout.
        replacements: Factory of environments that replace those that raise. ``None``: the worker raises the error.
        step_worker_restarts: 0, because sub-environments of several agents have no step workers.
    """

    _writer: AgentWriter
    replacements: Replacements | None = None
    step_worker_restarts = 0

    def __init__(
        self,
        envs: list[Any],
        assignments: AgentAssignments,
        worker: int,
        progress: StatusSlot,
        first: Sequence[Any] = (),
    ) -> None:
        self.envs, self.assignments, self._worker, self._progress = envs, assignments, worker, progress
        self.env_steps = 0
        self._tally = assignments.groups[0].tally
        self._first = dict(enumerate(first))
        self._has_begun = False
        self._resume_from: tuple[Mapping[str, Any], Mapping[int, int], bool] | None = None
        self._steps = [env.step for env in self.envs]
        self._step_codes, self._reset_codes = (
            [code(name, i) for i in assignments.env_ids] for name in ("step", "reset")
        )
        self._truncated = [False] * len(self.envs)

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
        if self._has_begun:
            envs = self.each("get_state", QuestionedEnv.get_state, range(len(self.envs)))
        return {"envs": envs, "collector": self._lasting() if self._has_begun else None, "random": random_state()}

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
        raise NotImplementedError

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

    def each(self, name: str, function: Callable[[Any], Any], columns: Sequence[int]) -> list[Any]:
        """Apply a function to some of the sub-environments."""
        results = []
        for column in columns:
            self._progress.begin("call", self.assignments.env_ids[column])
            results.append(function(QuestionedEnv(self.envs[column])))
        return results

    def replace(self, column: int, env: Any) -> None:
        """Replace the environment of a column, and close the old one."""
        with contextlib.suppress(Exception):
            self.envs[column].close()
        check_has_agents(env, self.assignments.env_ids[column])
        self.envs[column] = with_agents(env)
        self._steps[column] = self.envs[column].step
        spaces_of(self.envs, self.assignments.env_ids[0])

    def _lasting(self) -> dict[str, Any]:
        """Return what lasts from one rollout to the next beside the environments, as plain data."""
        return {"roster": self.assignments.get_state(), "truncated": list(self._truncated)}

    def _resume(self, state: Mapping[str, Any], seeds: Mapping[int, int], broken: bool) -> None:
        """Continue from a state of :meth:`_lasting`; columns with a seed begin a new episode."""
        self._first.clear()
        self.assignments.set_state(state["roster"], list(seeds), broken)
        self._truncated = list(state["truncated"])
        self._begin_episodes(seeds.items())

    def _begin_episodes(self, seeds: Iterable[tuple[int, int | None]]) -> None:
        for column, seed in seeds:
            self._begin_episode(column, seed)
        self.assignments.begin_counting()
        self.assignments.update_rows()

    def _begin_episode(self, column: int, seed: int | None) -> None:
        """Begin the next episode of a sub-environment, up to the first observations."""
        raise NotImplementedError

    def _carries(self, index: int) -> dict[str, Any]:
        """Return the carry of each policy before the first row. Rows of other policies have the initial carry."""
        who = self.assignments.groups[index].who
        return {
            policy.name: policy.carry_with_initial(np.flatnonzero(who != policy.index).tolist())
            for policy in self.assignments.policy_rows.values()
            if policy.group == index
        }

    def _begin_writing(self, writer: AgentWriter) -> None:
        self._writer = writer
        for policy in self.assignments.policy_rows.values():
            policy.begin()
        for group, mine in zip(self.assignments.groups, writer.groups, strict=True):
            mine.begin_rows(group.observed, group.seen, group.who, group.restarted)
            group.restarted[:] = False
        for index, mine in enumerate(writer.groups):
            mine.write_carry(self._carries(index))
        writer.versions[:] = self.assignments.versions()

    def _finish_writing(self, writer: AgentWriter) -> None:
        self._progress.begin("commit")
        for policy in self.assignments.policy_rows.values():
            policy.own_carry()
        for group, mine in zip(self.assignments.groups, writer.groups, strict=True):
            mine.finish(group.assigned)
        _write_open(self.assignments, writer.groups[0].own["open", 0])

    def _reset(self, column: int, seed: int | None) -> Any:
        """Reset a sub-environment and assign its agents; return what the reset returned."""
        env_id = self.assignments.env_ids[column]
        self._progress.cell[0] = self._reset_codes[column]
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
        self._truncated[column] = False
        return found

    def _replacement_of(self, column: int, error: BaseException) -> Any:
        """Replace an environment that raised; return what the reset of the new one returned."""
        if self.replacements is None:
            raise error
        return self.replacements.make(column, error)

    def _break_off(self, column: int, counts: Callable[[AgentRow], int]) -> None:
        """Truncate the episode of a sub-environment after its last complete step.

        If that step is in the previous rollout, the rows are flagged in ``restarted``. ``counts`` returns the number of
        complete steps of an agent row in this rollout.
        """
        for agent_row in (*self.assignments.agent_rows[column].values(), AgentRow("", 0, column)):
            group, mine = self.assignments.groups[agent_row.group], self._writer.groups[agent_row.group]
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
                self._end_part(agent_row.group, agent_row.row, count - 1, False, column, lost_by=_LOST_BY)
            if agent_row.group:
                group.who[agent_row.row] = NOBODY

    def _end_part(
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
        self._writer.groups[index].add_end(end, episode_return, length, self.assignments.numbers[column])
        self._truncated[column] |= not terminated
        if index:
            group.who[row] = NOBODY
            self._tally.returns[column] += episode_return

    def _end_episode(self, column: int, step: int, reward: float | None = None) -> None:
        """End the whole episode of a sub-environment."""
        self._end_part(0, column, step, not self._truncated[column], column, reward)


def _write_open(assignments: AgentAssignments, records: Any) -> None:
    """Write the episodes in progress. The return of an agent is added to the others when its part ends."""
    envs, *agents = assignments.groups
    envs.tally.write(records)
    records["number"] = assignments.numbers
    for group in agents:
        returns = np.where(group.who == NOBODY, 0.0, group.tally.returns)
        records["return"] += returns.reshape(len(records), -1).sum(1)
