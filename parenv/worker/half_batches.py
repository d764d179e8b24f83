"""Double buffering: collect from two halves of the sub-environments, so that acting and stepping overlap."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from parenv.envs.infos import InfoRows
from parenv.envs.vector_stepping import VectorStepper
from parenv.memory.trees import concatenated, map_trees
from parenv.worker.single import ACT
from parenv.worker.single_agent_collector import Seconds, SingleAgentCollector, StopCollectingError
from parenv.worker.writing import RolloutWriter


class HalfBatchCollector(SingleAgentCollector):
    """Acts for one half while step workers step the other half.

    Spaces without a fixed size and rollouts of whole episodes are stepped without halves.

    Args:
        *arguments: Arguments of :class:`SingleAgentCollector`. The environment of the stepper has ``halves``.
        **more: Further arguments of :class:`SingleAgentCollector`.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._halves: list[tuple[slice, VectorStepper]] = []
        self._in_halves = False
        first = 0
        envs: Any = self.stepper.envs[0]
        for half in envs.halves:
            stepper = VectorStepper(half, int(self.env_ids[first]), self._status, self.actor.fit)
            stepper.tally.begin()
            self._halves.append((slice(first, first + half.num_envs), stepper))
            first += half.num_envs

    def _reset_all(self, seeds: Sequence[int | None]) -> None:
        super()._reset_all(seeds)
        for _, stepper in self._halves:
            stepper.tally.begin()

    def _write_open(self, writer: RolloutWriter) -> None:
        if self._in_halves:
            for columns, stepper in self._halves:
                stepper.tally.write(writer.own["open", 0][columns])
        else:
            super()._write_open(writer)

    def collect(self, writer: RolloutWriter, enough: Callable[[Sequence[int]], bool] | None = None) -> Seconds:
        """Fill a rollout.

        Raises:
            StopCollectingError: The main process wants this worker to end.
        """
        spec = self.spec
        self._in_halves = enough is None and all(leaf.dtype for leaf in (*spec.observations, *spec.actions))
        if not self._in_halves:
            return super().collect(writer, enough)
        self._begin_writing(writer)
        halves = [HalfBatch(self, writer, columns, stepper) for columns, stepper in self._halves]
        acting, began = 0.0, time.perf_counter()
        for step in range(spec.rollout_length):
            for half in halves:
                if self._status.closing[0]:
                    raise StopCollectingError
                half.receive(step)
                before = time.perf_counter()
                half.act(step)
                acting += time.perf_counter() - before
        for half in halves:
            half.receive(spec.rollout_length)
        if self._carry is not None:
            self._carry = map_trees(concatenated, *(half.carry for half in halves))
        self._env_steps += spec.rollout_length
        self._settle(writer, spec.rollout_length - 1)
        return Seconds(time.perf_counter() - began - acting, acting)


class HalfBatch:
    """One half of the columns of a rollout, as the target of its stepper.

    Args:
        collector: Collector of both halves.
        writer: Writer of both halves.
        columns: Columns of this half.
        stepper: Stepper of this half.

    Attributes:
        carry: Carry of the policy for this half.
    """

    def __init__(
        self, collector: HalfBatchCollector, writer: RolloutWriter, columns: slice, stepper: VectorStepper
    ) -> None:
        self._collector, self._writer, self._columns, self._stepper = collector, writer, columns, stepper
        self._actor, self._status = collector.actor, collector._status
        carry = collector._carry
        self.carry = None if carry is None else map_trees(lambda values: values[columns], carry)
        self.ends = writer.ends
        self.finals = writer.finals
        self.rewards = writer.rewards[:, columns]
        self.plain = {name: writer.plain[name][:, columns] for name in ("terminated", "truncated")}
        mine = {key: array[:, columns] for key, array in writer.own.items() if key[0] in ("infos", "seen")}
        self.infos = InfoRows(collector.spec.infos, mine)

    @property
    def num_ends(self) -> int:
        """Number of episodes that have ended so far, in both halves."""
        return self._writer.num_ends

    def add_ends(self, columns: Any) -> Any:
        """Return unwritten records for ends in this half."""
        return self._writer.add_ends(columns + self._columns.start)

    def receive(self, step: int) -> None:
        """Wait for the results of the step before, unless this is the first."""
        if not step:
            return
        self._stepper.receive(self._rows(step), step - 1, self)
        begun = self._stepper.begun((), step - 1)
        if self.carry is not None and len(begun):
            initial = self._actor.initial_carry(self._stepper.num_envs)
            self.carry = self._actor.with_rows(self.carry, initial, begun)

    def act(self, step: int) -> None:
        """Act, and begin the step."""
        self._status.cell[0] = ACT
        self._status.heartbeat[0] += 1
        seen = self.infos.seen[step] if self.infos.seen else {}
        actions, extras, self.carry = self._actor.act(self._rows(step), self.carry, seen)
        fitted = self._collector.fitted(actions, self._stepper.num_envs)
        written = self._writer.write_actions(step, fitted, extras, self._columns)
        rows = [row[self._columns] for row in written]
        self._collector.check_actions(rows, step, self._columns.start)
        self._stepper.send(rows)

    def _rows(self, step: int) -> list[Any]:
        return [row[self._columns] for row in self._writer.observations[step]]
