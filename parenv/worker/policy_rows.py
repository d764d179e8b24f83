"""The rows of a group whose agents act by one policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenv.envs.fitting import not_finite
from parenv.errors import PolicyOutputError
from parenv.memory.trees import copy_with, map_trees
from parenv.worker.actor import NO_INFOS, Actor
from parenv.worker.agent_writing import GroupWriter


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
                        f"the action of policy {self.name!r} for {self.describe(row)} is not finite: {value!r}"
                    )
        return fitted

    def _stored(self, extras: Mapping[str, Any]) -> Mapping[str, Any]:
        return {self._renamed.get(name, name): value for name, value in extras.items()} if self._renamed else extras
