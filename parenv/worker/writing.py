"""Writers of one worker's rows in rollout slots, for one policy or for named policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from parenv.envs.infos import InfoRows
from parenv.envs.targets import End
from parenv.envs.values import Rows
from parenv.experience.assembly import Arrays, Columns
from parenv.memory.agent_layout import NOBODY
from parenv.memory.device_memory import opened
from parenv.memory.layout import PLAIN, SlotSpec, part_of_slot, slot_layout
from parenv.memory.spaces import flatten
from parenv.memory.trees import ALL, array_or_list, as_array, assign
from parenv.protocol.messages import Layout

Writer = TypeVar("Writer")
MakeWriter = Callable[[SlotSpec, Sequence[Arrays], Columns], Writer]
"""``(spec, arrays of each group, columns of a worker) -> writer``."""


class RolloutWriter:
    """One worker's rows of one group in one slot. Steppers write to it.

    Args:
        spec: Content of the slot.
        arrays: Arrays of each group.
        columns: Sub-environments of this worker.
        group: Index of the group.

    Attributes:
        arrays: Arrays of the group.
        columns: Rows of this worker.
        own: This worker's part of each array, by field and key. If a space is a single array, ``"observations", 0`` has
            all observations, ``[T + 1, B, ...]``, and ``"actions", 0`` all actions, ``[T, B, ...]``.
        plain: This worker's part of the fields in :data:`~parenv.memory.layout.PLAIN`, by name.
        observations: Rows of the observations at every step, 0 to T, one array or list ``[B, ...]`` per leaf.
        action_rows: Rows of the actions at every step, 0 to T - 1, one array or list ``[B, ...]`` per leaf.
        infos: Rows of the infos that the user named.
    """

    def __init__(self, spec: SlotSpec, arrays: Sequence[Arrays], columns: Columns, group: int = 0) -> None:
        self._spec, self.arrays = spec.groups[group], arrays[group]
        width = len(self._spec.agents)
        self.columns = Columns(columns.position, columns.first * width, columns.stop * width)
        part = part_of_slot(self._spec.rollout_length, *self.columns[:3])
        self.own = {name: array[part[name[0]]] for name, array in self.arrays.items()}
        self.plain = {name: self.own[name, 0] for name in PLAIN}
        self.rewards = self.plain["rewards"]
        self._extras = {extra.name: self.own["extras", extra.name] for extra in self._spec.extras}
        self._carry = [self.own["carry", i] for i in range(len(self._spec.carry))]
        self.gradient = self.own["gradients", 0][0] if self._spec.gradient_bytes else None
        self.infos = InfoRows(self._spec.infos, self.own)
        self.ends: list[End] = []
        self._added_ends = 0
        self.finals: list[Any] = []
        self.observations: list[Rows] = []
        self.action_rows: list[Rows] = []

    def begin(self, rows: Rows) -> None:
        """Begin a rollout with these observations."""
        T, B = self._spec.rollout_length, self.columns.stop - self.columns.first
        self.ends, self._added_ends = [], 0
        self.plain["terminated"][:] = self.plain["truncated"][:] = False
        objects: dict[tuple[str, Any], Any] = {}
        for name, of, length in (("observations", self._spec.observations, T + 1), ("actions", self._spec.actions, T)):
            objects |= {
                (name, i): [[None] * B for _ in range(length)] for i, leaf in enumerate(of) if leaf.dtype is None
            }
        objects |= {("finals", i): [] for i, leaf in enumerate(self._spec.observations) if leaf.dtype is None}
        self.columns = self.columns._replace(objects=objects)
        blocks = {**self.own, **objects}
        self.finals = [blocks["finals", i] for i in range(len(self._spec.observations))]
        if objects or not self.observations:
            # Cut up once for all rollouts in this slot: at every step, a slice costs as much as a cheap environment.
            observations = [blocks["observations", i] for i in range(len(self._spec.observations))]
            self.observations = list(zip(*observations, strict=True))
            self.action_rows = list(zip(*(blocks["actions", i] for i in range(len(self._spec.actions))), strict=True))
        for block, row in zip(self.observations[0] if self.observations else (), rows, strict=True):
            assign(block, ALL, row)

    def write_actions(self, step: int, actions: Sequence[Any], extras: Mapping[str, Any], columns: slice = ALL) -> Rows:
        """Write actions and extras that the policy returned. Return the actions in the dtypes of the space."""
        written = self.action_rows[step]
        # Most spaces have one leaf, and a loop over two lists costs as much as a step of a cheap environment.
        if len(written) == 1 and type(actions[0]) is np.ndarray is type(written[0]):
            written[0][columns] = actions[0]
        else:
            for row, values in zip(written, actions, strict=True):
                assign(row, columns, values)
        if extras:
            self.write_extras(extras, (step, columns))
        return written

    def write_extras(self, extras: Mapping[str, Any], where: Any = ALL) -> None:
        """Write extras that the policy or ``postprocess`` returned, in arrays, lists or tensors."""
        for name, value in extras.items():
            assign(self._extras[name], where, value)

    def rewrite_action(self, step: int, column: int, actions: Sequence[Any], extras: Mapping[str, Any]) -> None:
        """Replace the action and the extras of one column by others."""
        for row, values in zip(self.action_rows[step], actions, strict=True):
            row[column] = array_or_list(values)[column]
        for name, value in extras.items():
            self._extras[name][step][column] = as_array(value)[column]

    def write_carry(self, carry: Any, columns: Any = ALL) -> None:
        """Write the carry before the first row."""
        for block, values in zip(self._carry, flatten(self._spec.carry, carry) if self._carry else (), strict=True):
            block[columns] = as_array(values)[columns]

    @property
    def num_ends(self) -> int:
        """Number of episodes that have ended so far."""
        return len(self.ends) + self._added_ends

    def add_ends(self, columns: Any) -> Any:
        """Return records for ends of some sub-environments of a batch, :data:`~parenv.memory.layout.END_DTYPE`."""
        begin = self.num_ends
        self._added_ends += len(columns)
        records = self.own["ends", 0][begin : begin + len(columns)]
        records["column"], records["void"] = columns + self.columns.first, False
        return records

    def write_ends(self, returns: Any, lengths: Any) -> None:
        """Write the ends of single environments, with the return and length of each episode, ``[K]``."""
        if self.ends:
            steps, columns, terminated, truncated, seconds, _, counts, lost_by = map(list, zip(*self.ends, strict=True))
            self.plain["terminated"][steps, columns] = terminated
            self.plain["truncated"][steps, columns] = truncated
            table = self.end_records()
            table["step"], table["column"] = steps, columns
            table["column"] += self.columns.first
            table["return"], table["length"], table["seconds"] = returns, lengths, seconds
            table["counts"] = counts
            table["ended_by"] = [lost or not by_env for lost, by_env in zip(lost_by, terminated, strict=True)]
            table["void"], table["known"], table["resets_next"] = False, True, False
        self.own["commits", 0]["num_ends"] = self.num_ends

    def end_records(self) -> Any:
        """Return the episode ends of this rollout, :data:`~parenv.memory.layout.END_DTYPE`."""
        return self.own["ends", 0][: self.num_ends]

    def ended_since(self, known: int) -> list[int]:
        """Return the columns of all ends but the first ``known``."""
        if self.ends:
            return [end.column for end in self.ends[known:]]
        return (self.end_records()[known:]["column"] - self.columns.first).tolist()  # type: ignore[no-any-return]

    def stamp(self, **commit: float) -> None:
        """Write the commit record field by field. ``sequence`` comes last: it makes the slot hold this rollout."""
        record = self.own["commits", 0]
        for name, value in commit.items():
            record[name] = value


class SlotWriters(dict[int, Writer]):
    """One worker's writer of each slot, made when the slot is first written to.

    Args:
        make: Class of the writers.
        spec: Content of a slot.
        layout: Places of the slots.
        num_envs: Number of sub-environments of this worker.
        mapping: All of the shared memory.

    Attributes:
        device: Memory of a device with the other part of each slot, or ``None``.
    """

    def __init__(
        self,
        make: MakeWriter[Writer],
        spec: SlotSpec,
        layout: Layout,
        num_envs: int,
        mapping: Any,
    ) -> None:
        super().__init__()
        self._make, self._spec, self._layout, self._memory = make, spec, layout, memoryview(mapping)
        self._columns = Columns(layout.position, layout.first_column, layout.first_column + num_envs)
        self._slots = slot_layout(spec, layout.slot_envs, layout.slot_workers)
        self.device = opened(layout.device, layout.device_memory) if layout.device else None

    def __missing__(self, slot: int) -> Writer:
        offset = self._layout.slots_offset + slot * self._layout.slot_bytes
        arrays = self._slots.arrays(self._memory[offset : offset + self._layout.slot_bytes])
        if self.device is not None:
            block = self.device.tensor(slot * self._layout.device_slot_bytes, self._slots.device_bytes)
            arrays[0] |= self._slots.tensors(block)
        writer = self[slot] = self._make(self._spec, arrays, self._columns)
        return writer


def writer_in_own_memory(make: MakeWriter[Writer], spec: SlotSpec, batch: int) -> Writer:
    """Make a writer over memory of its own, for rollouts of ``batch`` sub-environments that no other process reads."""
    layout = slot_layout(spec, batch, 1)
    return make(spec, layout.arrays(np.zeros(layout.total_bytes, np.uint8)), Columns(0, 0, batch))


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
