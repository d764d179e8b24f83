"""Results of sub-environments whose worker was restarted: truncated, with the last observation, and flagged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium.vector import AutoresetMode

from parenv.memory.kinds import ENDED_BY, FINAL_OBSERVATION, WORKER_RESTARTED
from parenv.memory.spaces import unflatten
from parenv.memory.step_buffer import StepBuffer
from parenv.vector.results import Results, add_info, put


class LostEpisodes:
    """Rows whose episode was lost with a worker.

    If such a row awaits the result of a step, this class writes the result at once. Otherwise the row is *broken*, and
    this class writes the result when the user requests the next step.

    Args:
        step_buffer: Step buffer of the vector env.
        results: Reader of the step buffer.
        mode: Autoreset mode.
        wanted: Whether workers are restarted. If not, this class keeps nothing.

    Attributes:
        broken: Reason for the loss of each broken row, by env_id.
    """

    def __init__(self, step_buffer: StepBuffer, results: Results, mode: AutoresetMode, wanted: bool) -> None:
        self._step_buffer, self._results, self._mode, self.wanted = step_buffer, results, mode, wanted
        self.broken: dict[int, str] = {}
        self._answered: dict[int, dict[str, Any]] = {}
        self._last = results.rows(range(step_buffer.spec.num_envs)) if wanted else []

    def lose(self, env_ids: Sequence[int], ended_by: str) -> None:
        """Mark rows whose episode was lost as broken. The reason of an earlier loss counts."""
        for env_id in env_ids:
            self.broken.setdefault(env_id, ended_by)

    def forget(self, env_ids: Sequence[int]) -> None:
        """Unmark rows that begin another episode."""
        for env_id in env_ids if self.broken or self._answered else ():
            self.broken.pop(env_id, None)
            self._answered.pop(env_id, None)

    def take_back(self) -> None:
        """Mark rows as broken again whose results were written here but never delivered."""
        if self._answered:
            self.broken.update({env_id: info[ENDED_BY] for env_id, info in self._answered.items()})
            self._answered.clear()

    def delivered(self, env_ids: Sequence[int]) -> None:
        """Copy the observations that the user has received."""
        if self.wanted:
            for kept, new in zip(self._last, self._results.rows(env_ids), strict=True):
                put(kept, env_ids, new)

    def answer_broken(self, env_ids: Sequence[int]) -> set[int]:
        """Write truncated results without reward to the broken rows among these; return those rows."""
        if not self.broken:
            return set()
        step_buffer = self._step_buffer
        rows = [env_id for env_id in env_ids if env_id in self.broken]
        for env_id in rows:
            info: dict[str, Any] = {WORKER_RESTARTED: True, ENDED_BY: self.broken.pop(env_id)}
            if self._mode is AutoresetMode.SAME_STEP:
                last = [kept[env_id] if isinstance(kept, list) else kept[env_id].copy() for kept in self._last]
                info |= {FINAL_OBSERVATION: unflatten(step_buffer.spec.observations, last), "final_info": {}}
            else:
                self._results.restore([env_id], [kept[env_id : env_id + 1] for kept in self._last])
            self._answered[env_id] = info
        step_buffer.rewards[rows], step_buffer.terminated[rows], step_buffer.truncated[rows] = 0.0, False, True
        step_buffer.finished[rows] = step_buffer.requested[rows]
        return set(rows)

    def add_to(self, infos: dict[str, Any], env_ids: Any) -> dict[str, Any]:
        """Add the flags of rows whose results were written here to the infos of these rows."""
        if self._answered:
            for position, env_id in enumerate(list(env_ids)):
                if env_id in self._answered:
                    infos = add_info(infos, self._answered.pop(env_id), position, len(env_ids))
        return infos
