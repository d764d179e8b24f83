"""Collect rollouts of a single agent, in the sub-environments of the training or in scratch environments."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from parenv.envs.factories import Factories
from parenv.envs.fitting import Fit, not_finite
from parenv.envs.infos import Found, first_seen
from parenv.envs.make import Stepper, make_envs, make_stepper
from parenv.envs.seeding import random_state, set_random_state
from parenv.envs.values import Rows
from parenv.errors import ObservationError, PolicyOutputError
from parenv.experience.assembly import assemble
from parenv.experience.rollout import Rollout
from parenv.memory.layout import RolloutSpec, SlotSpec
from parenv.memory.spaces import Leaf
from parenv.memory.status_slot import StatusSlot
from parenv.memory.trees import ALL, array_or_list, as_array, assign, copy_as, copy_of, deep_copy, map_trees
from parenv.protocol.messages import Commit, Credit
from parenv.worker.actor import NO_INFOS, Actor
from parenv.worker.differentiator import Differentiated
from parenv.worker.single import ACT, fill_rows, single_env
from parenv.worker.single import StopCollectingError as StopCollectingError
from parenv.worker.writing import RolloutWriter, writer_in_own_memory

StepEnvs = Callable[[Rows, Rows, int, RolloutWriter], None]
"""``(actions, rows to write to, step, writer) -> None``."""


class Seconds(NamedTuple):
    """Duration of the parts of a rollout in seconds."""

    environment: float
    acting: float


class SingleAgentCollector:
    """Sub-environments of a single agent, see :class:`~parenv.worker.collect_task.Collector`.

    Args:
        stepper: Sub-environments.
        actor: Actor with the policy.
        spec: Contents of a rollout.
        rows: First observations, one array or list ``[B, ...]`` per leaf.
        env_ids: env_ids of the sub-environments, int64 ``[B]``.
        worker: Index of the worker.
        status: Status slot of the worker.
        restarted: Whether this process has replaced another one.
        infos: Info of each reset.

    Attributes:
        replacements: ``None``: this class raises exceptions of sub-environments.
        seen: Infos of the next observations that the policy takes, by name ``[B, ...]``.
    """

    replacements: Any = None

    def __init__(
        self,
        stepper: Stepper,
        actor: Actor,
        spec: RolloutSpec,
        rows: Sequence[Any],
        env_ids: Any,
        worker: int,
        status: StatusSlot,
        restarted: bool = False,
        infos: Sequence[Found] = (),
    ) -> None:
        self.stepper, self.actor, self.spec = stepper, actor, spec
        self._restarted = np.full(stepper.num_envs, restarted)
        self._rows, self.env_ids, self._worker, self._status = rows, env_ids, worker, status
        self.seen: Mapping[str, Any] = first_seen(spec.infos, infos)
        self._carry = actor.initial_carry(stepper.num_envs)
        self._carry_before = self._carry
        """Carry before the last action."""
        self._env_steps = 0
        self.fitted = actor.actions.kept if spec.on_device else actor.actions.fitted
        self._step: StepEnvs = _staged(stepper, spec) if spec.on_device and not stepper.writes_tensors else stepper.step

    def load(self, version: int, place: int, snapshot: bytes) -> None:
        """Load a version of the policy."""
        self.actor.load(place, snapshot)

    def get_state(self) -> dict[str, Any]:
        """Return everything that lasts from one rollout to the next, and the random state, as plain data."""
        return {
            "envs": self.stepper.get_states(),
            "rows": [deep_copy(array_or_list(rows)) for rows in self._rows],
            "infos": {name: rows.copy() for name, rows in self.seen.items()},
            "carry": None if self._carry is None else map_trees(as_array, self.actor.own_carry(self._carry)),
            "open": [self.stepper.tally.returns.copy(), self.stepper.tally.lengths.copy()],
            "random": random_state(),
        }

    def set_state(self, state: dict[str, Any], seeds: Sequence[int], broken: bool) -> list[int]:
        """Restore a state, see :class:`~parenv.worker.collect_task.Collector`."""
        renewed = [column for column, found in enumerate(state["envs"]) if found is None]
        if renewed:
            self._reset_all(seeds)
        self.stepper.set_states(state["envs"])
        initial = self.actor.initial_carry(self.stepper.num_envs)
        if initial is not None:
            saved = map_trees(copy_as, initial, state["carry"])
            self._carry = self.actor.with_rows(saved, initial, renewed)
        tally = self.stepper.tally
        tally.returns[:], tally.lengths[:] = state["open"]
        for column in range(self.stepper.num_envs):
            if column in renewed:
                tally.forget(column)
            else:
                for mine, saved in zip(self._rows, state["rows"], strict=True):
                    assign(mine, column, saved[column])
                for name, mine in self.seen.items():
                    mine[column] = state["infos"][name][column]
        self._restarted[:] = broken
        self._restarted[renewed] = True
        set_random_state(state["random"])
        return renewed

    @property
    def step_worker_restarts(self) -> int:
        """Number of step workers of this worker that were replaced so far."""
        # With step workers, the only environment is the vector env that they step.
        restarts: int = getattr(self.stepper.envs[0], "step_worker_restarts", 0)
        return restarts

    def each(self, name: str, function: Callable[[Any], Any], columns: Sequence[int]) -> list[Any]:
        """Apply a function to some of the sub-environments."""
        return self.stepper.each(name, function, columns)

    def restart(self, seeds: Sequence[int | None] | None = None, *, cuts: bool = False) -> list[Any]:
        """Cut all episodes in progress, and begin new ones.

        Args:
            seeds: Seeds of the sub-environments. Default: none.
            cuts: Whether to flag the next rollout in ``restarted``.

        Returns:
            First observations, one array or list ``[B, ...]`` per leaf.
        """
        batch = self.stepper.num_envs
        self._reset_all(seeds or [None] * batch)
        self._restarted |= cuts
        self._carry = self.actor.initial_carry(batch)
        return [deep_copy(rows) for rows in self._rows]

    def _reset_all(self, seeds: Sequence[int | None]) -> None:
        self._rows, infos = reset(self.stepper, self.spec.observations, seeds)
        self.seen = first_seen(self.spec.infos, infos)

    def collect(self, writer: RolloutWriter, enough: Callable[[Sequence[int]], bool] | None = None) -> Seconds:
        """Fill a rollout. An exception of a sub-environment is raised from here.

        Args:
            writer: Writer of the slot.
            enough: Function that is called with the columns whose episodes have ended. If it returns true, the rollout
                ends before it is full.

        Raises:
            StopCollectingError: The driver wants this worker to end.
        """
        began, stepper, actor = time.perf_counter(), self.stepper, self.actor
        initial = actor.initial_carry(stepper.num_envs)
        self._begin_writing(writer)
        plain = initial is enough is None and self._step == stepper.step
        if plain and (single := single_env(stepper, actor, writer)) is not None:
            self._carry, acting = fill_rows(single, actor, self._carry, writer, self._status, self._env_steps)
            rows_filled = self.spec.rollout_length
        else:
            acting, rows_filled = self._fill_rows(writer, initial, enough)
        environment = time.perf_counter() - began - acting
        self._env_steps += rows_filled
        self._settle(writer, rows_filled - 1)
        return Seconds(environment, acting)

    def _begin_writing(self, writer: RolloutWriter) -> None:
        writer.plain["restarted"][:], self._restarted[:] = self._restarted, False
        writer.plain["resetting"][:] = self.stepper.resetting
        writer.begin(self._rows)
        writer.infos.begin(self.seen)
        writer.write_carry(self._carry)

    def _fill_rows(
        self, writer: RolloutWriter, initial: Any, enough: Callable[[Sequence[int]], bool] | None
    ) -> tuple[float, int]:
        """Act and step, once per row; return the seconds of acting and the number of rows."""
        clock, acting, stepper = time.perf_counter, 0.0, self.stepper
        cell, heartbeat, closing = self._status.cell, self._status.heartbeat, self._status.closing
        act, write, step_envs = self.actor.act_on, writer.write_actions, self._step
        fitted, batch = self.fitted, stepper.num_envs
        observations, ends = writer.observations, writer.ends
        observe = self.actor.observing(writer)
        seen, finite = writer.infos.seen or repeat(NO_INFOS), self.actor.fit.finite
        for step, infos in zip(range(self.spec.rollout_length), seen, strict=False):
            if closing[0]:
                raise StopCollectingError
            began = clock()
            cell[0] = ACT
            heartbeat[0] += 1
            self._carry_before = self._carry
            actions, extras, self._carry = act(observe(step), self._carry, infos)
            written = write(step, fitted(actions, batch), extras)
            acting += clock() - began
            known = writer.num_ends
            if finite:
                self.check_actions(written, step)
            try:
                step_envs(written, observations[step + 1], step, writer)
            except ObservationError as error:
                error.args = (f"in env step {self._env_steps + step + 1}: {error.args[0]}",)
                raise
            if initial is not None and len(columns := stepper.begun(ends[known:], step)):
                self._carry = self.actor.with_rows(self._carry, initial, columns)
            if enough is not None and writer.num_ends > known and enough(writer.ended_since(known)):
                break
        return acting, step + 1

    def _settle(self, writer: RolloutWriter, step: int) -> None:
        """Keep what the next rollout begins with, and write the episode ends until this step."""
        stepper = self.stepper
        self._status.begin("commit")
        self._rows = [copy_of(row) for row in writer.observations[step + 1]]
        self.seen = {name: block.copy() for name, block in writer.infos.after(step).items()}
        self._carry = self.actor.own_carry(self._carry)
        writer.write_ends(*stepper.count(writer.rewards[: step + 1], writer.ends))
        self._write_open(writer)

    def _write_open(self, writer: RolloutWriter) -> None:
        """Write the episodes in progress."""
        self.stepper.tally.write(writer.own["open", 0])

    def check_actions(self, actions: Rows, step: int, first: int = 0) -> None:
        """Check that actions are finite, if ``check_finite`` is set. They begin at the column ``first``.

        Raises:
            PolicyOutputError: An action is not finite.
        """
        if not self.actor.fit.finite:
            return
        for leaf, values in zip(self.spec.actions, actions, strict=True):
            for column in np.flatnonzero([not_finite(value) for value in array_or_list(values)]) if leaf.dtype else ():
                raise PolicyOutputError(
                    f"the policy's action{leaf.name} for env_id {self.env_ids[first + column]} in env step "
                    f"{self._env_steps + step + 1} must be finite, got {values[column]!r}"
                )

    def commit_writer(self, writer: RolloutWriter) -> RolloutWriter:
        """Return the writer of the commit record and the gradient."""
        return writer

    def commit(self, credit: Credit, rollout: Any, learned: Differentiated, evaluating: Any) -> Commit:
        """Return the commit with the metrics of ``loss_fn``, and the number of env steps that it has learned from."""
        num_steps = None if rollout is None else rollout.num_steps
        return Commit(credit.sequence, env_steps=num_steps, metrics=learned.metrics)

    def postprocess(self, function: Callable[[Any, Any], Any], writer: RolloutWriter, policy_version: int) -> None:
        """Call ``postprocess`` of the user, and write the extras that it returns."""
        given = self.rollout(writer, policy_version, postprocessed=False)
        writer.write_extras(self.actor.postprocess(function, given))

    def rollout(self, writer: RolloutWriter, policy_version: int, postprocessed: bool = True) -> Rollout:
        """Return the rollout of a writer.

        Args:
            writer: Writer that was filled last.
            policy_version: Version that acted.
            postprocessed: Whether to include the extras of ``postprocess``.
        """
        return assemble(
            self.spec,
            writer.arrays,
            [writer.columns],
            env_ids=self.env_ids,
            worker=self._worker,
            policy_version=policy_version,
            policy_lag=0,
            extras=[extra.name for extra in self.spec.extras if postprocessed or not extra.postprocessed],
        )


def _staged(stepper: Stepper, spec: RolloutSpec) -> StepEnvs:
    """Return a function that steps into arrays and copies them to rows on a device in one go."""
    staged = empty_rows(spec.observations, stepper.num_envs)

    def step_envs(actions: Rows, rows: Rows, step: int, writer: RolloutWriter) -> None:
        stepper.step([array_or_list(values) for values in actions], staged, step, writer)
        for row, values in zip(rows, staged, strict=True):
            assign(row, ALL, values)

    return step_envs


def reset(
    stepper: Stepper, observations: Sequence[Leaf], seeds: Sequence[int | None]
) -> tuple[list[Any], Sequence[Found]]:
    """Begin an episode in every sub-environment.

    Returns:
        First observations, one array or list ``[B, ...]`` per leaf, and the info of each sub-environment.
    """
    rows = empty_rows(observations, stepper.num_envs)
    infos = stepper.reset(seeds, rows)
    return rows, infos


def empty_rows(observations: Sequence[Leaf], batch: int) -> list[Any]:
    """Return memory for one observation of each sub-environment, one array or list ``[B, ...]`` per leaf."""
    return [
        [None] * batch if leaf.dtype is None else np.zeros((batch, *leaf.shape), leaf.dtype) for leaf in observations
    ]


def private_writer(spec: RolloutSpec, batch: int) -> RolloutWriter:
    """Return a writer over private memory, for rollouts that are not delivered."""
    return writer_in_own_memory(RolloutWriter, SlotSpec((replace(spec, gradient_bytes=0, on_device=False),)), batch)


@dataclass(eq=False)
class ScratchEnvs:
    """Sub-environments that are made at the first use, and reset for each use.

    Args:
        factories: Factories of the environments.
        env_ids: env_ids of the environments.
        status: Status slot of the worker.
        fit: Rules for observations and actions that do not fit their space.
        step_threads: Number of threads that step.
        others: Environments that are in use already. A factory must not return them again.
    """

    factories: Factories
    env_ids: range
    status: StatusSlot
    fit: Fit
    step_threads: int
    others: Sequence[Any] = ()
    _stepper: Stepper | None = field(default=None, init=False)

    @property
    def stepper(self) -> Stepper:
        """The sub-environments."""
        if self._stepper is None:
            envs = make_envs(self.factories, self.env_ids, self.status, self.others)
            self._stepper = make_stepper(envs, self.env_ids.start, self.status, self.fit, self.step_threads)
            self.get_to_know(self._stepper.envs)
        return self._stepper

    def over(self, stepper: Stepper) -> ScratchEnvs:
        """Return a copy that uses existing sub-environments."""
        copy = replace(self)
        copy._stepper = stepper
        return copy

    def get_to_know(self, envs: Sequence[Any]) -> None:
        """Inspect environments that have just been made."""

    def collector(self, actor: Actor, spec: RolloutSpec, seed: int, worker: int) -> tuple[SingleAgentCollector, Rows]:
        """Reset the sub-environments with seeds; return a collector and the first observations."""
        stepper = self.stepper
        seeds = np.random.SeedSequence(seed).generate_state(stepper.num_envs).tolist()
        rows, infos = reset(stepper, spec.observations, seeds)
        env_ids = np.arange(self.env_ids.start, self.env_ids.start + stepper.num_envs)
        return SingleAgentCollector(stepper, actor, spec, rows, env_ids, worker, self.status, infos=infos), rows

    def close(self) -> None:
        """Close the sub-environments. The next use makes new ones."""
        stepper, self._stepper = self._stepper, None
        if stepper is not None:
            stepper.close()
