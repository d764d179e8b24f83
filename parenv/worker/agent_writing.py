"""Writers of one worker's rows in the slots of named policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from parenv.envs.targets import End
from parenv.envs.values import Rows
from parenv.experience.assembly import Arrays, Columns
from parenv.memory.agent_layout import NOBODY
from parenv.memory.layout import SlotSpec
from parenv.memory.trees import as_array
from parenv.worker.writing import RolloutWriter


class GroupWriter(RolloutWriter):
    """One worker's rows of one group in a slot of named policies.

    Attributes:
        policies: Index of the policy that acts in each row, ``[T, R]``.
        first_versions: Version that acted first in each row, ``[R]``.
        blocks: Arrays of the rows, one per leaf, extra or info, by field.
    """

    def __init__(self, spec: SlotSpec, arrays: Sequence[Arrays], columns: Columns, group: int = 0) -> None:
        super().__init__(spec, arrays, columns, group)
        self.policies = self.own["policies", 0]
        self.first_versions = self.own["first_versions", 0]
        self.blocks: dict[str, list[Any]] = {
            field: [array for name, array in self.own.items() if name[0] == field]
            for field in ("observations", "actions", "extras", "infos", "seen")
        }
        self._records: list[tuple[float, int, int]] = []

    def begin_rows(self, rows: Rows, seen: Mapping[str, Any], who: Any, restarted: Any) -> None:
        """Begin a rollout.

        Args:
            rows: First observations, one array ``[R, ...]`` per leaf.
            seen: Infos that came with them, each ``[R, ...]``.
            who: Index of the policy that acts in each row, ``[R]``.
            restarted: Whether a row does not follow the rollout before, bool ``[R]``.
        """
        self._records = []
        self.begin(rows)
        self.infos.begin(seen)
        self.plain["restarted"][:] = restarted
        self.rewards[:] = 0
        self.policies[:] = who
        self.first_versions[:] = -1
        self.blank(np.flatnonzero(who == NOBODY), 0)

    def blank(self, rows: Any, step: int) -> None:
        """Clear rows from a step on, since no policy acts in them and the slot holds an older rollout."""
        if len(rows):
            for blocks in self.blocks.values():
                for block in blocks:
                    block[step:, rows] = 0

    def note(self, row: int, step: int, policy: int) -> None:
        """Set the policy that acts in a row from a step on, or :data:`~parenv.memory.agent_layout.NOBODY`."""
        self.policies[step:, row] = policy
        if policy == NOBODY:
            self.blank(np.array([row]), step)

    def write_some(self, steps: Any, rows: Any, actions: Sequence[Any], extras: Mapping[str, Any]) -> list[Any]:
        """Write actions and extras of a policy for some rows. Return the actions in the dtypes of the space, by leaf.

        Args:
            steps: Step of all rows, or of each, ``[n]``.
            rows: Indices of the rows, ``[n]``.
            actions: Actions, ``[n, ...]`` per leaf.
            extras: Extras by their names in the slot, each ``[n, ...]``.
        """
        for block, values in zip(self.blocks["actions"], actions, strict=True):
            block[steps, rows] = as_array(values)
        for name, value in extras.items():
            self._extras[name][steps, rows] = as_array(value)
        return [block[steps, rows] for block in self.blocks["actions"]]

    def blank_postprocessed(self) -> None:
        """Clear the extras that ``postprocess`` returned for an older rollout."""
        for extra in self._spec.extras:
            if extra.postprocessed:
                self._extras[extra.name][:] = 0

    def add(self, extras: Mapping[str, Any], rows: Any, alive: Any) -> None:
        """Write extras that ``postprocess`` returned for some rows, ``[T, n, ...]``, at steps where they were alive."""
        steps, which = np.nonzero(alive)
        for name, value in extras.items():
            self._extras[name][steps, rows[which]] = as_array(value)[steps, which]

    def begin_anew(self, row: int, carry: Mapping[str, Any]) -> None:
        """Flag a row as restarted, and begin it with this carry."""
        self.plain["restarted"][row] = True
        self.first_versions[row] = -1
        self.write_carry(carry, row)

    def goes_on(self, row: int, step: int) -> bool:
        """Return whether a policy acted in a row at a step, and its episode did not end there."""
        return self.policies[step, row] != NOBODY and (step, row) not in {end[:2] for end in self.ends}

    def keep_final(self, row: int, step: int) -> None:
        """Copy the observation of a step as the final one of the next end that is added."""
        for finals, block in zip(self.finals, self.blocks["observations"], strict=True):
            finals[len(self.ends)] = block[step, row]

    def add_end(self, end: End, episode_return: float, length: int, number: int) -> None:
        """Add the end of an episode, or of an agent's part of one."""
        self.ends.append(end)
        self._records.append((episode_return, length, number))

    def finish(self, assigned: Any) -> None:
        """Write the episode ends, and the policy that is assigned to each row, ``[R]``."""
        self.own["assigned", 0][:] = assigned
        returns, lengths, numbers = zip(*self._records, strict=True) if self._records else ((), (), ())
        self.write_ends(returns, lengths)
        self.own["numbers", 0][: len(numbers)] = numbers

    def ended(self) -> tuple[Any, list[int]]:
        """Return the records of the ends, and the numbers of their episodes."""
        return self.end_records().copy(), [number for _, _, number in self._records]


class AgentWriter:
    """One worker's part of one slot of named policies.

    Args:
        spec: Content of the slot.
        arrays: Arrays of each group.
        columns: Sub-environments of this worker.

    Attributes:
        groups: Writer of each group.
        versions: Version of each policy, int64 ``[P]``.
    """

    def __init__(self, spec: SlotSpec, arrays: Sequence[Arrays], columns: Columns) -> None:
        self.groups = [GroupWriter(spec, arrays, columns, index) for index in range(len(spec.groups))]
        self.versions = arrays[0]["versions", 0][columns.position]

    @cached_property
    def steps(self) -> list[tuple[list[Any], list[Any], list[Any]]]:
        """Rows for next observations, infos and rewards of each group, by step; sliced once for all rollouts."""
        T = self.groups[-1].policies.shape[0]
        observed = [[mine.observations[t + 1] if mine.observations else () for mine in self.groups] for t in range(T)]
        seen = [[mine.infos.after(t) for mine in self.groups] for t in range(T)]
        return [(rows, seen[t], [mine.rewards[t] for mine in self.groups]) for t, rows in enumerate(observed)]
