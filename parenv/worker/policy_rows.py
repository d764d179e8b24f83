"""A side: the rows of a group whose agents act by one policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenv.envs.fitting import not_finite
from parenv.errors import PolicyOutputError
from parenv.memory.trees import copy_with, map_trees
from parenv.worker.acting import NO_INFOS, Actor
from parenv.worker.agent_writing import GroupWriter


@dataclass(eq=False)
class PolicyRows:
    """What acts for some of the rows of a group, and what the policy keeps of them.

    Args:
        name: of the policy.
        index: of the policy.
        group: of the rows, by index.
        actor: the policy.
        num_rows: of the group.
        stored: by what the policy calls an extra, the name under which it is stored.
        whose: says in words whose row it is, for messages.

    Attributes:
        rows: which ones, ascending.
        carry: of all rows of the group.
        initial: the carry at the beginning of an episode.
    """

    name: str
    index: int
    group: int
    actor: Actor
    num_rows: int
    stored: Mapping[str, str]
    whose: Callable[[int], str]

    def __post_init__(self) -> None:
        self._renamed = {mine: theirs for mine, theirs in self.stored.items() if mine != theirs}
        self.initial = self.actor.initial_carry(self.num_rows)
        self.carry = self.initial
        self.rows = np.arange(0)
        self._observed: Callable[[int], Any] | None = None

    def begin(self) -> None:
        """A rollout begins."""
        self._observed = None

    def act(self, writer: GroupWriter, step: int) -> None:
        """Act for all of its rows on the observations of a step, and write what comes of it."""
        rows = self.rows
        if len(rows) == self.num_rows:  # Every row of the group is its own.
            self._observed = self._observed or self.actor.observing(writer)
            infos = writer.infos.seen[step] if writer.infos.seen else NO_INFOS
            actions, extras, self.carry = self.actor.act_on(self._observed(step), self.carry, infos)
            writer.write_actions(step, self._fitted(actions, rows), self._stored(extras))
        else:
            self.act_for([block[rows] for block in writer.observations[step]], rows, writer, step)

    def act_for(self, observed: Any, rows: Any, writer: GroupWriter, steps: Any) -> list[Any]:
        """Act for some rows, and write what comes of it; the actions as they were written.

        Args:
            observed: observations of these rows, one array ``[n, ...]`` per leaf.
            rows: ``[n]``.
            writer: where to.
            steps: one for all, or ``[n]``.
        """
        carry = None if self.carry is None else map_trees(lambda values: values[rows], self.carry)
        infos = writer.infos.seen_at(steps, rows) if writer.infos.seen else NO_INFOS
        actions, extras, following = self.actor.act(observed, carry, infos)
        if self.carry is not None:
            self.carry = map_trees(lambda values, others: copy_with(values, rows, others), self.carry, following)
        return writer.write_some(steps, rows, self._fitted(actions, rows), self._stored(extras))

    def begin_row(self, row: int) -> None:
        """An agent begins an episode."""
        self.carry = self.carry_with_initial([row])

    def carry_with_initial(self, rows: Sequence[int]) -> Any:
        """The carry, with these rows as at the beginning of an episode."""
        if self.initial is None or not rows:
            return self.carry
        return self.actor.with_rows(self.carry, self.initial, rows)

    def own(self) -> None:
        """Keep nothing of a rollout."""
        self.carry = self.actor.own_carry(self.carry)

    def _fitted(self, actions: Sequence[Any], rows: Any) -> Sequence[Any]:
        fitted = self.actor.actions.fitted(actions, len(rows))
        for values in fitted if self.actor.fit.finite else ():
            for row, value in zip(rows.tolist(), values, strict=True):
                if not_finite(value):
                    raise PolicyOutputError(
                        f"the action of policy {self.name!r} for {self.whose(row)} is not finite: {value!r}"
                    )
        return fitted

    def _stored(self, extras: Mapping[str, Any]) -> Mapping[str, Any]:
        return {self._renamed.get(name, name): value for name, value in extras.items()} if self._renamed else extras
