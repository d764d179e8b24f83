"""Results of sub-environments whose worker was restarted: truncated, with the last observation, and flagged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parenv.envs.autoreset import Autoreset
from parenv.memory.kinds import ENDED_BY, FINAL_OBSERVATION, LOST_ATTRIBUTES, WORKER_RESTARTED
from parenv.memory.spaces import unflatten
from parenv.memory.step_buffer import StepBuffer
from parenv.vector.results import Results, add_info, put


class LostEpisodes:
    """Rows whose episode was lost with a worker.

    Such a row is *broken* until the user requests its next step, or is answered at once if it is stepping. The result
    is truncated, without reward, and flagged. Until then, the row contains the last observation that the user received.

    If the step of an end also resets, the result contains the first observation of the next episode, so the new worker
    gets a request for the row. In the other modes this class writes the result.

    Args:
        step_buffer: Step buffer of the vector env.
        results: Reader of the step buffer.
        autoreset: Autoreset mode.
        wanted: Whether workers are restarted. If not, this class keeps nothing.

    Attributes:
        broken: Reason for the loss of each broken row, by env_id.
        answered: Info of each row that was answered and whose result was not delivered, by env_id.
    """

    def __init__(self, step_buffer: StepBuffer, results: Results, autoreset: Autoreset, wanted: bool) -> None:
        self._step_buffer, self._results, self.wanted = step_buffer, results, wanted
        self._begins_next = autoreset.resets_in_step
        self.broken: dict[int, str] = {}
        self.answered: dict[int, dict[str, Any]] = {}
        self._last = results.rows(range(step_buffer.spec.num_envs)) if wanted else []
        self._unset: dict[int, Sequence[str]] = {}
        self._held: dict[int, list[Any]] = {}
        """Observation of each broken row whose result exists and could not be delivered."""

    def lose(self, env_ids: Sequence[int], ended_by: str) -> list[int]:
        """Mark rows as broken; return those whose loss is new. The reason of an earlier loss counts."""
        new = [env_id for env_id in env_ids if env_id not in self.broken and env_id not in self.answered]
        for env_id in env_ids:
            self._held.pop(env_id, None)
            earlier = self.answered.pop(env_id, {ENDED_BY: ended_by})
            self.broken.setdefault(env_id, earlier[ENDED_BY])
        self._results.restore(env_ids, [_part(kept, env_ids) for kept in self._last])
        # The lost worker may have ended the episode in a step whose result the user does not get.
        self._write_flags(list(env_ids), truncated=False)
        return new

    def note_unset(self, unset: Mapping[int, Sequence[str]]) -> None:
        """Add the names of attributes that could not be set again to the next infos of rows, given by env_id."""
        self._unset.update(unset)

    def fail(self, env_ids: Sequence[int]) -> None:
        """Mark rows as broken again whose next episode could not begin."""
        if failed := [env_id for env_id in env_ids if env_id in self.answered]:
            self.lose(failed, "")

    def forget(self, env_ids: Sequence[int]) -> None:
        """Unmark rows that begin another episode."""
        for env_id in env_ids if self.broken else ():
            self.broken.pop(env_id, None)
            self._held.pop(env_id, None)

    def take_back(self) -> None:
        """Mark rows as broken again whose results were never delivered, and hold these results."""
        for env_id in list(self.answered):
            held = self._results.rows([env_id])
            exists = self._step_buffer.finished[env_id] == self._step_buffer.requested[env_id]
            self.lose([env_id], "")
            if exists:
                self._held[env_id] = held

    def delivered(self, env_ids: Sequence[int]) -> None:
        """Copy the observations that the user has received."""
        if self.wanted:
            for kept, new in zip(self._last, self._results.rows(env_ids), strict=True):
                put(kept, env_ids, new)

    def answer_broken(self, env_ids: Sequence[int]) -> set[int]:
        """Answer the broken rows among these; return the rows that need no request."""
        rows = [env_id for env_id in env_ids if env_id in self.broken] if self.broken else []
        for env_id in rows:
            info: dict[str, Any] = {WORKER_RESTARTED: True, ENDED_BY: self.broken.pop(env_id)}
            if self._begins_next:
                last = [kept[env_id] if isinstance(kept, list) else kept[env_id].copy() for kept in self._last]
                final = unflatten(self._step_buffer.spec.observations, last)
                info |= {FINAL_OBSERVATION: final, "final_info": {}}
            self.answered[env_id] = info
        here = [env_id for env_id in rows if env_id in self._held or not self._begins_next]
        for env_id in here:
            if env_id in self._held:
                self._results.restore([env_id], self._held.pop(env_id))
        self._write_flags(here, truncated=True)
        self._step_buffer.finished[here] = self._step_buffer.requested[here]
        return set(here)

    def add_to(self, infos: dict[str, Any], env_ids: Any) -> dict[str, Any]:
        """Flag the answered rows among these, in the step buffer and in the infos of these rows."""
        for position, env_id in enumerate(list(env_ids)) if self.answered or self._unset else ():
            info = self.answered.pop(env_id, {})
            if info:
                self._write_flags([env_id], truncated=True)
            if env_id in self._unset and env_id not in self.broken:
                info[LOST_ATTRIBUTES] = tuple(self._unset.pop(env_id))
            if info:
                infos = add_info(infos, info, position, len(env_ids))
        return infos

    def _write_flags(self, rows: list[int], truncated: bool) -> None:
        step_buffer = self._step_buffer
        step_buffer.rewards[rows], step_buffer.terminated[rows], step_buffer.truncated[rows] = 0.0, False, truncated


def _part(kept: Any, env_ids: Sequence[int]) -> Any:
    return [kept[env_id] for env_id in env_ids] if isinstance(kept, list) else kept[list(env_ids)]
