"""Writing one worker's rows of agents into a rollout slot."""

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
        """Begin a rollout with these observations.

        Args:
            rows: one array ``[R, ...]`` per leaf.
            seen: the infos that came with them, by name ``[R, ...]``.
            who: acts in each row, ``[R]``.
            restarted: bool ``[R]``.
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
        """Leave nothing of former rollouts in rows in which nobody acts from a step on."""
        if len(rows):
            for blocks in self.blocks.values():
                for block in blocks:
                    block[step:, rows] = 0

    def note(self, row: int, step: int, policy: int) -> None:
        """From a step on, somebody else acts in a row, or nobody."""
        self.policies[step:, row] = policy
        if policy == NOBODY:
            self.blank(np.array([row]), step)

    def write_some(self, steps: Any, rows: Any, actions: Sequence[Any], extras: Mapping[str, Any]) -> list[Any]:
        """Write what a policy returned for some rows; the actions in the dtypes of the space, one array per leaf.

        Args:
            steps: one for all, or ``[n]``.
            rows: ``[n]``.
            actions: ``[n, ...]`` per leaf.
            extras: likewise, by the names under which they lie here.
        """
        for block, values in zip(self.blocks["actions"], actions, strict=True):
            block[steps, rows] = as_array(values)
        for name, value in extras.items():
            self._extras[name][steps, rows] = as_array(value)
        return [block[steps, rows] for block in self.blocks["actions"]]

    def blank_postprocessed(self) -> None:
        """Leave nothing of what ``postprocess`` returned for former rollouts."""
        for extra in self._spec.extras:
            if extra.postprocessed:
                self._extras[extra.name][:] = 0

    def add(self, extras: Mapping[str, Any], rows: Any, alive: Any) -> None:
        """Write what ``postprocess`` returned for some rows, ``[T, n, ...]``, where they were alive, ``[T, n]``."""
        steps, which = np.nonzero(alive)
        for name, value in extras.items():
            self._extras[name][steps, rows[which]] = as_array(value)[steps, which]

    def begin_anew(self, row: int, carry: Mapping[str, Any]) -> None:
        """What is in a row does not follow the rollout before; it begins with this carry."""
        self.plain["restarted"][row] = True
        self.first_versions[row] = -1
        self.write_carry(carry, row)

    def goes_on(self, row: int, step: int) -> bool:
        """Whether somebody acted in a row at a step, and did not end with it."""
        return self.policies[step, row] != NOBODY and (step, row) not in {end[:2] for end in self.ends}

    def keep_final(self, row: int, step: int) -> None:
        """An episode will be said to end with what is observed there."""
        for finals, block in zip(self.finals, self.blocks["observations"], strict=True):
            finals[len(self.ends)] = block[step, row]

    def add_end(self, end: End, episode_return: float, length: int, number: int) -> None:
        """An episode, or an agent's part of one, has ended."""
        self.ends.append(end)
        self._records.append((episode_return, length, number))

    def finish(self, assigned: Any) -> None:
        """Write where episodes ended, and who acts in each row, ``[R]``, if its agent is there."""
        self.own["assigned", 0][:] = assigned
        returns, lengths, numbers = zip(*self._records, strict=True) if self._records else ((), (), ())
        self.write_ends(returns, lengths)
        self.own["numbers", 0][: len(numbers)] = numbers

    def ended(self) -> tuple[Any, list[int]]:
        """The records of what has ended, and the numbers of the episodes."""
        return self.end_records().copy(), [number for _, _, number in self._records]


class AgentWriter:
    """One worker's part of one slot.

    Args:
        spec: what the slot holds.
        arrays: of each group.
        columns: this worker's, a column for each sub-environment.

    Attributes:
        groups: a writer for each.
        versions: of each policy, int64 ``[P]``.
    """

    def __init__(self, spec: SlotSpec, arrays: Sequence[Arrays], columns: Columns) -> None:
        self.groups = [GroupWriter(spec, arrays, columns, index) for index in range(len(spec.groups))]
        self.versions = arrays[0]["versions", 0][columns.position]

    @cached_property
    def steps(self) -> list[tuple[list[Any], list[Any], list[Any]]]:
        """By step, rows for what is observed behind it, its infos, and rewards, of each group; cut up once for all."""
        T = self.groups[-1].policies.shape[0]
        observed = [[mine.observations[t + 1] if mine.observations else () for mine in self.groups] for t in range(T)]
        seen = [[mine.infos.after(t) for mine in self.groups] for t in range(T)]
        return [(rows, seen[t], [mine.rewards[t] for mine in self.groups]) for t, rows in enumerate(observed)]
