"""The named policies of a worker, each with its own actor, and the rows of a group for which each one acts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from parenv.envs.fitting import Fit, not_finite
from parenv.errors import PolicyOutputError
from parenv.memory.layout import SlotSpec
from parenv.memory.trees import copy_with, map_trees
from parenv.policy.assignment import PolicyTable
from parenv.policy.snapshots import SharedWeights, WeightsReader
from parenv.worker.actor import NO_INFOS, Actor
from parenv.worker.job import Job
from parenv.worker.writing import GroupWriter


class PolicySet:
    """The policies that act in this worker.

    Args:
        job: Job with the policies.
        load_job: Function that makes another copy of the job, for frozen versions.
        spec: Contents of a rollout.
        mapping: Shared memory.
        fit: Rules for actions that do not fit their space.

    Attributes:
        spec: Contents of a rollout.
        fit: Rules for actions that do not fit their space.
        table: Policies by name, with their versions. Empty before the first load.
        actors: Actor of each policy.
        settings: Published settings of each policy.
    """

    def __init__(self, job: Job, load_job: Callable[[], Any], spec: SlotSpec, mapping: Any, fit: Fit) -> None:
        self._job, self._load_job, self.spec, self._mapping, self.fit = job, load_job, spec, mapping, fit
        self.table: PolicyTable = {}
        self.settings: Mapping[str, Mapping[str, Any]] = {}
        self.actors = {name: self._actor(name, job.policies[name], WeightsReader) for name in spec.found}
        self._loaded: dict[str, int] = {}

    @property
    def indices(self) -> set[int]:
        """Indices of the policies."""
        return {row.index for row in self.table.values()}

    def load(self, serial: int, snapshot: bytes, /) -> None:
        """Load the pickled table of versions ``snapshot``. Its number ``serial`` is not needed."""
        table: PolicyTable = cloudpickle.loads(snapshot)
        for name in [name for name in self.actors if name not in table]:
            del self.actors[name]
            self._loaded.pop(name, None)  # An actor whose last load failed is not in it.
        for name, row in table.items():
            if name not in self.actors:
                self.actors[name] = self._actor(row.of, self._load_job().policies[row.of], SharedWeights)
            if self._loaded.get(name) != row.number:
                self._loaded.pop(name, None)  # The actor has neither version if the load fails.
                self.actors[name].load(row.place, row.snapshot)
                self._loaded[name] = row.number
        self.table = table
        self.settings = {name: row.settings for name, row in table.items()}

    @contextlib.contextmanager
    def deterministic(self, wanted: bool) -> Iterator[None]:
        """Make a context in which ``settings["deterministic"]`` of every policy has this value."""
        with contextlib.ExitStack() as stack:
            for actor in self.actors.values():
                stack.enter_context(actor.deterministic(wanted))
            yield

    def _actor(self, of: str, policy: Any, weights: Callable[..., Any]) -> Actor:
        spec = self.spec.groups[self.spec.found[of].group]
        offset, device = self._job.weights_offsets[of], self._job.device
        read = partial(weights, memory=self._mapping, offset=offset, device=device)
        return Actor(policy, spec.observations, spec.actions, device, read, self.fit)


@dataclass(eq=False)
class PolicyRows:
    """A policy with its rows in a group, and its carry.

    Args:
        name: Name of the policy.
        index: Index of the policy.
        group: Index of the group.
        actor: Actor with the policy.
        num_rows: Number of rows of the group.
        stored: Name under which each extra is stored, by the name that the policy gives it.
        describe: Function that describes a row in error messages.

    Attributes:
        rows: Rows of the policy, ascending.
        carry: Carry of all rows of the group.
        initial: Carry at the beginning of an episode.
    """

    name: str
    index: int
    group: int
    actor: Actor
    num_rows: int
    stored: Mapping[str, str]
    describe: Callable[[int], str]

    def __post_init__(self) -> None:
        self._renamed = {mine: theirs for mine, theirs in self.stored.items() if mine != theirs}
        self.initial = self.actor.initial_carry(self.num_rows)
        self.carry = self.initial
        self.rows = np.arange(0)
        self._observed: Callable[[int], Any] | None = None

    def begin(self) -> None:
        """Begin a rollout."""
        self._observed = None

    def act(self, writer: GroupWriter, step: int) -> None:
        """Act for all rows of the policy on the observations of a step, and write actions and extras."""
        rows = self.rows
        if len(rows) == self.num_rows:  # The policy has every row of the group.
            self._observed = self._observed or self.actor.observing(writer)
            infos = writer.infos.seen[step] if writer.infos.seen else NO_INFOS
            actions, extras, self.carry = self.actor.act_on(self._observed(step), self.carry, infos)
            writer.write_actions(step, self._fitted(actions, rows), self._stored(extras))
        else:
            self.act_for([block[rows] for block in writer.observations[step]], rows, writer, step)

    def act_for(self, observed: Any, rows: Any, writer: GroupWriter, steps: Any) -> list[Any]:
        """Act for the rows ``[n]``, and write actions and extras at one step, or at steps ``[n]``.

        Return the actions in the dtypes of the space. Observations and actions are one array ``[n, ...]`` per leaf.
        """
        carry = None if self.carry is None else map_trees(lambda values: values[rows], self.carry)
        infos = writer.infos.seen_at(steps, rows) if writer.infos.seen else NO_INFOS
        actions, extras, following = self.actor.act(observed, carry, infos)
        if self.carry is not None:
            self.carry = map_trees(lambda values, others: copy_with(values, rows, others), self.carry, following)
        return writer.write_some(steps, rows, self._fitted(actions, rows), self._stored(extras))

    def begin_row(self, row: int) -> None:
        """Begin the episode of an agent."""
        self.carry = self.carry_with_initial([row])

    def carry_with_initial(self, rows: Sequence[int]) -> Any:
        """Return the carry with the initial carry in these rows."""
        if self.initial is None or not rows:
            return self.carry
        return self.actor.with_rows(self.carry, self.initial, rows)

    def own_carry(self) -> None:
        """Copy the carry out of the slot."""
        self.carry = self.actor.own_carry(self.carry)

    def _fitted(self, actions: Sequence[Any], rows: Any) -> Sequence[Any]:
        fitted = self.actor.actions.fitted(actions, len(rows))
        for values in fitted if self.actor.fit.finite else ():
            for row, value in zip(rows.tolist(), values, strict=True):
                if not_finite(value):
                    raise PolicyOutputError(
                        f"the action of policy {self.name!r} for {self.describe(row)} must be finite, got {value!r}"
                    )
        return fitted

    def _stored(self, extras: Mapping[str, Any]) -> Mapping[str, Any]:
        return {self._renamed.get(name, name): value for name, value in extras.items()} if self._renamed else extras
