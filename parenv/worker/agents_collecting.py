"""Collecting where several agents act: what both ways of doing so have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parenv.envs.targets import End
from parenv.errors import ObservationError
from parenv.experience.agent_rollouts import RolloutsByPolicy
from parenv.experience.agents_assembly import assemble_agents
from parenv.memory.status_slot import StatusSlot, code
from parenv.worker.agent_writing import AgentWriter
from parenv.worker.collecting import Seconds
from parenv.worker.roster import Roster

Enough = Callable[[Sequence[End]], bool]
"""Is told which episodes of sub-environments have ended, and may end a rollout before it is full."""


class AgentsCollector:
    """Sub-environments of several agents under way, with all that lasts from one rollout to the next.

    Args:
        envs: the sub-environments.
        roster: their agents.
        progress: where to say what is going on.
        first: what the resets returned that have been done already.

    Attributes:
        env_steps: in the last rollout.
    """

    _writer: AgentWriter

    def __init__(self, envs: Sequence[Any], roster: Roster, progress: StatusSlot, first: Sequence[Any] = ()) -> None:
        self.envs, self.roster, self._progress = list(envs), roster, progress
        self.env_steps = 0
        self._first = dict(enumerate(first))
        self._steps = [env.step for env in self.envs]
        self._step_codes = [code("step", env_id) for env_id in roster.env_ids]
        self._truncated = [False] * len(self.envs)

    def begin(self, seeds: Sequence[int | None]) -> None:
        """Begin an episode in every sub-environment."""
        self.roster.clear()
        for column, seed in enumerate(seeds):
            self._begin_episode(column, seed)
        self.roster.begin_counting()
        self.roster.share_out()

    def get_state(self) -> dict[str, Any]:
        """Everything that lasts from one rollout to the next, beside the environments, as plain data."""
        return {"roster": self.roster.get_state(), "truncated": list(self._truncated)}

    def set_state(self, state: Mapping[str, Any], seeds: Mapping[int, int], broken: bool) -> None:
        """Go on where another collector was when it had this state; its sub-environments are there already.

        Args:
            state: of :meth:`get_state`.
            seeds: for the sub-environments that begin anew.
            broken: whether what follows does not follow what was delivered last.
        """
        self._first.clear()
        self.roster.set_state(state["roster"], list(seeds), broken)
        self._truncated = list(state["truncated"])
        for column, seed in seeds.items():
            self._begin_episode(column, seed)
        self.roster.begin_counting()
        self.roster.share_out()

    def collect(self, writer: AgentWriter, enough: Enough | None = None) -> Seconds:
        """Fill a rollout.

        Args:
            writer: where to.
            enough: may end it early.

        Raises:
            StopCollectingError: the driver wants this worker to end.
        """
        raise NotImplementedError

    def rollout(self, writer: AgentWriter, worker: int, policy_version: int) -> RolloutsByPolicy:
        """What was written last, of this worker alone."""
        own = [group.own for group in writer.groups]
        env_ids, first = np.array(self.roster.env_ids), writer.groups[0].columns.first
        about = (env_ids, worker, policy_version, self.env_steps, first)
        return assemble_agents(self.roster.spec, own, [len(self.envs)], self.roster.playing(), *about)

    def each(self, name: str, function: Callable[[Any], Any], columns: Sequence[int]) -> list[Any]:
        """Apply a function to some of the environments."""
        results = []
        for column in columns:
            self._progress.begin("call", self.roster.env_ids[column])
            results.append(function(self.envs[column]))
        return results

    def close(self) -> None:
        """Close all."""
        for env in self.envs:
            env.close()

    def _begin_episode(self, column: int, seed: int | None) -> None:
        """Begin the next episode of a sub-environment, up to the first observations."""
        raise NotImplementedError

    def _carries(self, index: int) -> dict[str, Any]:
        """The carry of each policy of a group before the first row: of its own rows; the others begin anew with it."""
        who = self.roster.groups[index].who
        return {
            side.name: side.carry_with_initial(np.flatnonzero(who != side.index).tolist())
            for side in self.roster.sides.values()
            if side.group == index
        }

    def _begin_writing(self, writer: AgentWriter) -> None:
        self._writer = writer
        for side in self.roster.sides.values():
            side.begin()
        for group, mine in zip(self.roster.groups, writer.groups, strict=True):
            mine.begin_rows(group.observed, group.who, group.restarted)
            group.restarted[:] = False
        for index, mine in enumerate(writer.groups):
            mine.write_carry(self._carries(index))
        writer.versions[:] = self.roster.versions()

    def _finish_writing(self, writer: AgentWriter) -> None:
        self._progress.begin("commit")
        for side in self.roster.sides.values():
            side.own()
        for group, mine in zip(self.roster.groups, writer.groups, strict=True):
            mine.finish(group.assigned)

    def _reset(self, column: int, seed: int | None) -> Any:
        """Reset a sub-environment and draw who plays; what it returned."""
        env, env_id = self.envs[column], self.roster.env_ids[column]
        self._progress.begin("reset", env_id)
        found = self._first.pop(column) if column in self._first else env.reset(seed=seed)
        if not env.agents:
            raise ObservationError(f"env_id {env_id} has no agents after its reset")
        self.roster.begin_episode(column)
        self._truncated[column] = False
        return found

    def _end_episode(self, column: int, step: int, length: int) -> None:
        """No agent of a sub-environment is left."""
        mine, group = self._writer.groups[0], self.roster.groups[0]
        seconds, _ = group.clocks.end(column, None)
        truncated = self._truncated[column]
        end = End(step, column, not truncated, truncated, seconds)
        mine.add_end(end, float(group.returns[column]), length, self.roster.numbers[column])
