"""Collect whole episodes as experience. Their rows are sent in parts, so that a long episode delays no other."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parenv.envs.values import Rows
from parenv.errors import ObservationError
from parenv.experience.episode_parts import OpenEpisodes, joined, rollout_of_episode, rows_of_slot
from parenv.memory.trees import ALL, as_array, assign, copy_with, map_trees
from parenv.protocol.messages import Commit, Credit
from parenv.worker.actor import NO_INFOS, Actor
from parenv.worker.chunk_cutter import ChunkCutter, Part, initial_carry
from parenv.worker.differentiator import Differentiated
from parenv.worker.single import ACT
from parenv.worker.single_agent_collector import Seconds, SingleAgentCollector, StopCollectingError, private_writer
from parenv.worker.writing import RolloutWriter

PROMPT_S = 0.025
"""Time in seconds after which a worker sends an episode that has ended, instead of collecting further rows first."""
PART_S = 0.5
"""Time in seconds after which a worker sends rows even if no episode has ended, so that it soon gets a new version."""


class EpisodePartsCollector(SingleAgentCollector):
    """Steps all sub-environments without a break, and sends the rows of their episodes in parts.

    An episode keeps the version that it began with. If that version would be too old, the episode continues with the
    newest one. The policy acts once per step for each version in use.

    Args:
        *arguments: Arguments of :class:`~parenv.worker.single_agent_collector.SingleAgentCollector`.
        make_actor: Function that makes another actor, with a copy of the policy.
        keeps: Number of publishes that the version of an episode may be behind. ``None``: any number.
        holds: Whether an episode is sent only when it is complete, because ``postprocess`` needs all of it.
        **more: Keyword arguments of the base class.
    """

    def __init__(
        self, *arguments: Any, make_actor: Callable[[], Actor], keeps: int | None, holds: bool, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        batch = self.stepper.num_envs
        self._versions = VersionsInUse(self.actor, make_actor, keeps, batch)
        self._chunk = private_writer(self.spec, batch)
        self._cutter = ChunkCutter(batch)
        self._held = OpenEpisodes(math.inf) if holds else None
        self._ended: list[Part] = []
        """Complete episodes that ``postprocess`` has not seen."""
        self._unsent: deque[Part] = deque()
        self._was_cut = np.zeros(batch, np.bool_)
        """Whether an episode of a sub-environment was cut since the last part."""
        self._slot = self._chunk
        self._observe: dict[Actor, Callable[[int], Any]] = {}

    def load(self, version: int, place: int, snapshot: bytes) -> None:
        """Load a version for the episodes that begin from now on, and for those whose version is too old."""
        self.actor = self._versions.load(version, place, snapshot, self._cutter.is_fresh)

    def set_state(self, state: dict[str, Any], seeds: Sequence[int], broken: bool) -> list[int]:
        """Restore a state. All episodes begin again, because the state has no rows of episodes in progress."""
        super().set_state(state, seeds, broken)
        self.restart(cuts=True)
        return list(range(self.stepper.num_envs))

    def restart(self, seeds: Sequence[int | None] | None = None, *, cuts: bool = False) -> list[Any]:
        """Cut all episodes in progress, and begin new ones. Complete episodes are kept."""
        first = super().restart(seeds, cuts=cuts)
        self._cutter = ChunkCutter(self.stepper.num_envs)
        self._versions.begin(ALL)
        return first

    def collect(self, writer: RolloutWriter, enough: Callable[[Sequence[int]], bool] | None = None) -> Seconds:
        """Step until there are enough rows for a part. Nothing is stepped if a part is waiting to be sent.

        Raises:
            ConfigurationError: An episode is too long.
            StopCollectingError: The driver wants this worker to end.
        """
        if sum(part.size for part in self._unsent) >= self._capacity:
            return Seconds(0.0, 0.0)
        began, chunk, restarted = time.perf_counter(), self._chunk, self._restarted.copy()
        self._begin_writing(chunk)
        self._was_cut |= restarted
        self._restarted = restarted  # It is the next episode of a column that has this flag, and not the next rows.
        acting, filled, begun = self._fill_chunk(chunk, began)
        environment = time.perf_counter() - began - acting
        self._env_steps += filled
        self._settle(chunk, filled - 1)
        for column, part in self._cutter.cut(chunk, filled, begun):
            self._take(column, part)
        return Seconds(environment, acting)

    def postprocess(self, function: Callable[[Any, Any], Any], writer: RolloutWriter, policy_version: int) -> None:
        """Call ``postprocess`` of the user with each episode, and add the extras that it returns."""
        names = [extra.name for extra in self.spec.extras if not extra.postprocessed]
        carry = initial_carry(self.spec, self.actor)
        for part in self._ended:
            rows = part.values["rows", 0]
            given = rollout_of_episode(
                self.spec,
                part.values,
                part.record.copy(),
                part.finals,
                initial_carry=carry,
                env_id=int(self.env_ids[rows["column"][0]]),
                worker=self._worker,
                newest=policy_version,
                extras=names,
            )
            num_steps = len(given.rewards)
            actor = self._versions.actor_of(int(rows["version"][num_steps - 1]))
            for name, value in actor.postprocess(function, given).items():
                assign(part.values["extras", name][:num_steps, None], ALL, value)
            self._unsent.append(part)
        self._ended.clear()

    def commit(self, credit: Credit, rollout: Any, learned: Differentiated, evaluating: Any) -> Commit:
        """Write rows to the slot, and return the commit with their number."""
        num_rows = self._send(self._slot)
        self._unsent = deque(part.own() for part in self._unsent)
        return Commit(credit.sequence, env_steps=num_rows)

    def commit_writer(self, writer: RolloutWriter) -> RolloutWriter:
        """Return the writer of the commit record."""
        self._slot = writer
        return writer

    @property
    def _capacity(self) -> int:
        return self.spec.rollout_length * self.stepper.num_envs

    def _fill_chunk(self, writer: RolloutWriter, began: float) -> tuple[float, int, list[tuple[int, int]]]:
        """Act and step until there are enough rows.

        Returns:
            Seconds of acting, the number of rows, and ``(row, column)`` of the first row of each episode that began.
        """
        clock, acting, stepper, begun = time.perf_counter, 0.0, self.stepper, list[tuple[int, int]]()
        cell, heartbeat, closing = self._status.cell, self._status.heartbeat, self._status.closing
        initial, versions = self.actor.initial_carry(stepper.num_envs), writer.own["rows", 0]["version"]
        self._observe.clear()
        for step in range(self.spec.rollout_length):
            if closing[0]:
                raise StopCollectingError
            since = clock()
            cell[0] = ACT
            heartbeat[0] += 1
            versions[step] = self._versions.by_column
            written = self._act(writer, step)
            acting += clock() - since
            known = writer.num_ends
            self.check_actions(written, step)
            try:
                stepper.step(written, writer.observations[step + 1], step, writer)
            except ObservationError as error:
                error.args = (f"in env step {self._env_steps + step + 1}: {error.args[0]}",)
                raise
            if len(columns := stepper.begun(writer.ends[known:], step)):
                begun += [(step + 1, int(column)) for column in columns]
                self._versions.begin(columns)
                if initial is not None:
                    self._carry = self.actor.with_rows(self._carry, initial, columns)
            if clock() - began > (PROMPT_S if writer.num_ends else PART_S):
                break
            # Rows that do not fit would be sent with the next part, and be older than the scheduler knows.
            if writer.num_ends + (step + 3) * stepper.num_envs > self._capacity:
                break
        return acting, step + 1, begun

    def _act(self, writer: RolloutWriter, step: int) -> Rows:
        """Act for all sub-environments, once for each version in use; return the actions in the dtypes of the space."""
        infos = writer.infos.seen[step] if writer.infos.seen else NO_INFOS
        groups = self._versions.groups
        if len(groups) == 1:
            actor, _ = groups[0]
            if actor not in self._observe:
                self._observe[actor] = actor.observing(writer)
            actions, extras, self._carry = actor.act_on(self._observe[actor](step), self._carry, infos)
            return writer.write_actions(step, self.fitted(actions, self.stepper.num_envs), extras)
        for actor, columns in groups:
            rows = [_picked(row, columns) for row in writer.observations[step]]
            seen = {name: value[columns] for name, value in infos.items()}
            carry = None if self._carry is None else map_trees(lambda value, at=columns: value[at], self._carry)
            actions, extras, following = actor.act(rows, carry, seen)
            for row, values in zip(writer.action_rows[step], actor.actions.fitted(actions, len(columns)), strict=True):
                _put(row, columns, values)
            writer.write_extras(extras, (step, columns))
            if carry is not None:
                merged = lambda values, others, at=columns: copy_with(values, at, others)  # noqa: E731
                self._carry = map_trees(merged, self._carry, following)
        return writer.action_rows[step]

    def _take(self, column: int, part: Part) -> None:
        """Take a part of the episode of a column."""
        rows = part.values["rows", 0]
        if rows["begins"][0]:
            rows["restarted"][0], self._restarted[column] = self._restarted[column], False
            if self._held is not None:
                self._held.begin(column)
        is_lost = part.record is not None and part.record["void"][0]
        if is_lost:
            # The process that had to take the last step was gone, so the episode is not whole.
            self._restarted[column] = True
        if self._held is None or is_lost:
            self._unsent.append(part)
            return
        part = part.own()
        self._held.add(column, part.values, part.size)
        if part.record is not None:
            self._ended.append(Part(joined(self._held.end(column)), part.record, part.finals, True))

    def _send(self, writer: RolloutWriter) -> int:
        """Write unsent rows to a slot, as many as fit; return their number."""
        slot, used, ends = rows_of_slot(writer.own), 0, 0
        objects: dict[tuple[str, Any], list[Any]] = {name: [] for name in self._chunk.columns.objects}
        while self._unsent and used < self._capacity:
            part = self._unsent.popleft()
            if part.size > self._capacity - used:
                part, others = part.split(self._capacity - used)
                self._unsent.appendleft(others)
            for name, value in part.values.items():
                if isinstance(value, list):
                    objects[name] += [*value, *[None] * (part.size - len(value))]
                else:
                    slot[name][used : used + len(value)] = value
            used += part.size
            if part.record is not None:
                self._write_end(writer, part, ends, used - 1, objects)
                ends += 1
        writer.own["commits", 0]["num_ends"] = ends
        writer.plain["restarted"][:], self._was_cut[:] = self._was_cut, False
        writer.own["open", 0][:] = self._chunk.own["open", 0]
        writer.columns = writer.columns._replace(objects=objects)
        if self.spec.carry:
            writer.write_carry(self.actor.initial_carry(self.stepper.num_envs))
        return used

    def _write_end(self, writer: RolloutWriter, part: Part, place: int, row: int, objects: dict[Any, Any]) -> None:
        record = writer.own["ends", 0][place : place + 1]
        record[:] = part.record
        # A record names the row of the slot, not the row of the episode.
        record["step"], record["column"] = divmod(row, self.stepper.num_envs)
        for i, final in enumerate(part.finals):
            if isinstance(final, list):
                objects["finals", i] += final
            else:
                writer.own["finals", i][place : place + 1] = final


class VersionsInUse:
    """Versions of the policy that act in the episodes in progress, each in an actor of its own.

    Args:
        actor: First actor.
        make_actor: Function that makes another one.
        keeps: Number of publishes that the version of an episode may be behind the newest one. ``None``: any number.
        num_envs: Number of sub-environments.

    Attributes:
        by_column: Version that acts in each sub-environment, int64 ``[B]``.
    """

    def __init__(self, actor: Actor, make_actor: Callable[[], Actor], keeps: int | None, num_envs: int) -> None:
        self._make_actor, self._keeps = make_actor, keeps
        self._actors, self._spares, self._newest = {-1: actor}, list[Actor](), -1
        self.by_column = np.full(num_envs, -1)
        self._groups: list[tuple[Actor, Any]] = []

    @property
    def groups(self) -> list[tuple[Actor, Any]]:
        """Each actor in use with its columns, int64 ``[b]``."""
        if not self._groups:
            versions = np.unique(self.by_column).tolist()
            self._groups = [(self._actors[v], np.flatnonzero(self.by_column == v)) for v in versions]
        return self._groups

    def actor_of(self, version: int) -> Actor:
        """Return the actor of a version that has acted since the last :meth:`load`."""
        return self._actors[version]

    def load(self, version: int, place: int, snapshot: bytes, is_fresh: Any) -> Actor:
        """Load a version; return its actor.

        Args:
            version: Number of the version.
            place: Place of its weights in shared memory.
            snapshot: Its pickled settings or policy.
            is_fresh: Columns that are at the beginning of an episode, bool ``[B]``.
        """
        keeps = ~is_fresh & (self.by_column != version)
        if self._keeps is not None:
            keeps &= self.by_column >= version - self._keeps
        acting = set(self.by_column[keeps].tolist())
        self._spares += [self._actors.pop(other) for other in list(self._actors) if other not in acting]
        if not self._spares:
            self._spares.append(self._make_actor())
        # It stays a spare one if this raises. The next version is loaded then before anything acts.
        self._spares[-1].load(place, snapshot)
        actor = self._actors[version] = self._spares.pop()
        self._newest, self.by_column[~keeps], self._groups = version, version, []
        return actor

    def begin(self, columns: Any) -> None:
        """Have the newest version act in these columns, where episodes begin."""
        if (self.by_column[columns] != self._newest).any():
            self.by_column[columns] = self._newest
            self._groups = []


def _picked(row: Any, columns: Any) -> Any:
    return [row[column] for column in columns.tolist()] if isinstance(row, list) else row[columns]


def _put(row: Any, columns: Any, values: Any) -> None:
    if isinstance(row, list):
        for column, value in zip(columns.tolist(), values, strict=True):
            row[column] = value
    else:
        row[columns] = as_array(values)
