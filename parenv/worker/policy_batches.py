"""Batches of constant shape, in which a policy acts for the episodes of an evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.envs.fitting import Fit
from parenv.envs.values import action_splitter, row_writer
from parenv.errors import ConfigurationError
from parenv.memory.layout import aligned_zeros
from parenv.memory.spaces import Leaf, leaves
from parenv.worker.actor import Actor, check_actions
from parenv.worker.episode_envs import EpisodeRow


class PolicyBatch:
    """Episodes whose spaces have the same arrays. The policy acts for all of them at once.

    The batch always has the same number of rows, and an episode has the same row on any worker, because matrix products
    round differently with another shape or in another row. Rows that are not in use contain former observations. Their
    actions are not used.

    Args:
        actor: Policy.
        observations: Leaves of the observation space.
        actions: Leaves of the action space.
        num_rows: Number of rows.
        fit: Rules for values that do not fit their space.

    Attributes:
        playing: Episodes in progress.
    """

    def __init__(
        self, actor: Actor, observations: Sequence[Leaf], actions: Sequence[Leaf], num_rows: int, fit: Fit
    ) -> None:
        self._actor, self._action_leaves, self._num_rows = actor, actions, num_rows
        self._rows = [
            [None] * num_rows if leaf.dtype is None else aligned_zeros((num_rows, *leaf.shape), leaf.dtype)
            for leaf in observations
        ]
        self._write, self._split = row_writer(observations, fit), action_splitter(actions)
        self._carry = self._initial = actor.initial_carry(num_rows)
        self._unused = set(range(num_rows))
        self._has_acted = False
        self.playing: list[EpisodeRow] = []

    def begin(self, one: EpisodeRow, observation: Any) -> None:
        """Begin an episode with its first observation.

        Raises:
            ObservationError: The observation does not fit its space.
        """
        self.observe(one, observation)
        # A policy may fail on rows of zeros, so rows that were never in use have an observation too.
        for row in self._unused - {one.row}:
            self._write(self._rows, row, observation)
        self._unused.clear()
        if self._initial is not None:
            self._carry = self._actor.with_rows(self._carry, self._initial, [one.row])
        self.playing.append(one)
        one.batch = self

    def observe(self, one: EpisodeRow, observation: Any) -> None:
        """Take the observation after a step.

        Raises:
            ObservationError: The observation does not fit its space.
        """
        self._write(self._rows, one.row, observation)

    def act(self, acting: Sequence[EpisodeRow]) -> Sequence[Any]:
        """Act for some of the episodes; return an action for each row.

        Raises:
            ConfigurationError: The policy cannot act on these observations at all.
        """
        if self._has_acted:
            return self._split(self._acted(acting))
        one = acting[0]
        assert one.spaces is not None
        try:
            fitted = self._acted(acting)
            check_actions(self._action_leaves, one.spaces[1], fitted, self._num_rows)
        except Exception as error:
            raise ConfigurationError(
                f"the policy does not fit task {one.task!r} with the observation space {one.spaces[0]} and the action "
                f"space {one.spaces[1]}: {type(error).__name__}: {error}"
            ) from error
        self._has_acted = True
        return self._split(fitted)

    def _acted(self, acting: Sequence[EpisodeRow]) -> Sequence[Any]:
        before = self._carry
        actions, _, self._carry = self._actor.act(self._rows, before, self._infos(acting))
        if self._initial is not None and len(acting) < len(self.playing):
            waiting = [one.row for one in self.playing if one not in acting]
            self._carry = self._actor.with_rows(self._carry, before, waiting)
        fitted = self._actor.actions.fitted(actions, self._num_rows)
        # Actions of another dtype of the same kind fit, and environments expect that of their space.
        return [
            values if leaf.dtype is None else np.asarray(values, leaf.dtype)
            for leaf, values in zip(self._action_leaves, fitted, strict=True)
        ]

    def _infos(self, acting: Sequence[EpisodeRow]) -> dict[str, Any]:
        """Return the infos that the policy takes and all acting episodes have, with a value for each row."""
        found = {}
        for name in self._actor.infos_taken:
            given = {one.row: one.info[name] for one in acting if name in one.info}
            if len(given) == len(acting):
                spare = next(iter(given.values()))
                found[name] = np.stack([np.asarray(given.get(row, spare)) for row in range(self._num_rows)])
        return found


class PolicyBatches:
    """The batches of a policy, one for each kind of spaces.

    Args:
        policy: Policy.
        device: Device on which it acts.
        deterministic: Value of its setting ``deterministic``, until :meth:`close`.
        num_rows: Number of rows of each batch.
        fit: Rules for values that do not fit their space.
    """

    def __init__(self, policy: Any, device: str, deterministic: bool, num_rows: int, fit: Fit) -> None:
        self._policy, self._device, self._deterministic = policy, device, deterministic
        self._num_rows, self._fit = num_rows, fit
        self._batches: dict[Any, PolicyBatch] = {}
        self._closing = contextlib.ExitStack()

    def begin(self, one: EpisodeRow, observation: Any) -> None:
        """Begin an episode in the batch for its spaces, with its first observation.

        Raises:
            ObservationError: The observation does not fit its space.
        """
        assert one.spaces is not None
        kind = leaves(one.spaces[0]), leaves(one.spaces[1])
        if kind not in self._batches:
            actor = Actor(self._policy, *kind, self._device, fit=self._fit)
            self._closing.enter_context(actor.deterministic(self._deterministic))
            self._batches[kind] = PolicyBatch(actor, *kind, self._num_rows, self._fit)
        self._batches[kind].begin(one, observation)

    def end(self, one: EpisodeRow) -> None:
        """End an episode, if it is in progress."""
        if one.batch is not None:
            one.batch.playing.remove(one)
            one.batch = None

    def act(self, acting: Sequence[EpisodeRow]) -> list[Any]:
        """Act for some of the episodes, once in each of their batches; return their actions."""
        actions: dict[EpisodeRow, Any] = {}
        for batch in self.playing():
            if mine := [one for one in acting if one.batch is batch]:
                found = batch.act(mine)
                actions |= {one: found[one.row] for one in mine}
        return [actions[one] for one in acting]

    def playing(self) -> list[PolicyBatch]:
        """Return the batches with episodes in progress."""
        return [batch for batch in self._batches.values() if batch.playing]

    def close(self) -> None:
        """Give the policy its former settings."""
        self._closing.close()
