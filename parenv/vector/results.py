"""Read the results of a vector env from the step buffer, and write actions to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv

from parenv.crew.warning import Warner
from parenv.envs.fitting import Fit, not_finite, of_one_kind
from parenv.errors import ConfigurationError, NotDataError
from parenv.memory.spaces import Leaf, flatten, is_single, unflatten
from parenv.memory.step_buffer import StepBuffer
from parenv.memory.step_buffer_infos import Announced, InfoReader
from parenv.options import WorkerOptions
from parenv.protocol.messages import SideData


class Results:
    """Reads rows of the step buffer, together with the data from messages.

    Args:
        step_buffer: Step buffer of the vector env.
        space: Observation space of the first sub-environment.
        copy: Whether observations of all rows are copies, or arrays over the step buffer.
        options: Options with the checks of actions.
        strict_infos: Whether a value in an info that has no plain form is an error.

    Attributes:
        fit: Checks of actions.
        left_out: env_id and description of each value that workers left out of an info, by its place.
    """

    def __init__(
        self, step_buffer: StepBuffer, space: Space[Any], copy: bool, options: WorkerOptions, strict_infos: bool
    ) -> None:
        self.fit = Fit.of(options, Warner())
        self._step_buffer, self._copy, self._strict = step_buffer, copy, strict_infos
        self.left_out: dict[str, tuple[int, str]] = {}
        self._warn_left_out = Warner()
        self._leaves = step_buffer.spec.observations
        self._empty = {
            i: dict if isinstance(part, spaces.Dict) else tuple
            for i, part in enumerate(flatten(self._leaves, space))
            if isinstance(part, spaces.Dict | spaces.Tuple)
        }
        self._single = is_single(self._leaves)
        self._lists: dict[int, list[Any]] = {
            i: [None] * step_buffer.spec.num_envs for i, leaf in enumerate(self._leaves) if leaf.dtype is None
        }
        self._infos = InfoReader(step_buffer.info_kinds, step_buffer.infos, add_info)
        self._by_message: dict[int, Any] = Announced("an info of env_id")

    def take(self, side_data: Sequence[SideData]) -> None:
        """Store the data from messages."""
        for said in side_data:
            for number, kind in said.kinds:
                self._infos.learn(number, kind)
            self.left_out |= {where: (env_id, what) for env_id, where, what in said.left_out}
            for env_id, info in said.infos:
                self._by_message[env_id] = info
            for env_id, values in said.observations:
                for i, value in zip(self._lists, values or [], strict=False):
                    self._lists[i][env_id] = value

    def report_left_out(self) -> None:
        """Warn once for each place in infos whose value cannot leave a worker.

        Raises:
            NotDataError: ``strict_infos`` is set.
        """
        left_out, self.left_out = self.left_out, {}
        for where, (env_id, what) in left_out.items():
            if self._strict:
                raise NotDataError(
                    f"{what} (env_id {env_id}), which a worker cannot send, because it is not plain data. Return "
                    "numbers, text, arrays, lists or dicts, or use num_workers=0."
                )
            self._warn_left_out(
                f"{what} (env_id {env_id}), which a worker cannot send, because it is not plain data. {where} is left "
                "out for all sub-environments. Use num_workers=0 to keep it, or strict_infos=True to raise an error.",
                where,
            )

    def observations(self, env_ids: Any) -> Any:
        """Return the observations of all sub-environments, or of an array of env_ids."""
        if self._single:
            rows = self._step_buffer.observations[0]
            assert rows is not None
            if env_ids is not None:
                return rows[env_ids]
            return rows.copy() if self._copy else rows
        return unflatten(self._leaves, [self._leaf(i, env_ids) for i in range(len(self._leaves))])

    def rows(self, env_ids: Sequence[int]) -> list[Any]:
        """Copy the observations of these rows, for :meth:`restore`."""
        ids = list(env_ids)
        return [
            [self._lists[i][env_id] for env_id in ids] if rows is None else rows[ids]
            for i, rows in enumerate(self._step_buffer.observations)
        ]

    def restore(self, env_ids: Sequence[int], saved: Sequence[Any]) -> None:
        """Write copied observations back to their rows."""
        for i, rows in enumerate(self._step_buffer.observations):
            put(self._lists[i] if rows is None else rows, env_ids, saved[i])

    def infos(self, env_ids: Any) -> dict[str, Any]:
        """Return the infos of all sub-environments, or of an array of env_ids."""
        return self._infos.read(env_ids, self._by_message)

    def each_info(self) -> list[dict[str, Any]]:
        """Return a list with the info of each sub-environment."""
        return self._infos.each(self._by_message)

    def write_actions(self, actions: Any, env_ids: Any, keep_dtypes: bool) -> list[str] | None:
        """Write a batch of actions to the step buffer, without a change of their dtypes.

        Args:
            actions: Batch of actions, nested as the action space.
            env_ids: Sub-environments, or ``None`` for all.
            keep_dtypes: Whether the dtypes must stay, because workers have yet to read other actions.

        Returns:
            New dtypes that the workers need before they read, or an empty list. ``None`` if nothing was written because
            the actions do not fit into the step buffer.

        Raises:
            ConfigurationError: The actions do not fit their space, or are not finite although ``check_finite`` is set.
            TypeError: The actions are a single number.
        """
        step_buffer, fit = self._step_buffer, self.fit
        first = step_buffer.actions[0]
        rows = slice(None) if env_ids is None else env_ids
        n = step_buffer.spec.num_envs if env_ids is None else len(env_ids)
        is_array = step_buffer.one_action and type(actions) is np.ndarray and first is not None
        if is_array and actions.dtype == first.dtype and actions.shape == (n, *first.shape[1:]) and not fit.finite:
            first[rows] = actions
            return []
        if any(rows is None for rows in step_buffer.actions):
            return None
        given = flatten(step_buffer.spec.actions, actions)
        arrays = [np.asarray(values) for values in given]
        for leaf, values in zip(step_buffer.spec.actions, given, strict=True):
            _check_actions(leaf, values, range(n) if env_ids is None else env_ids, fit)
        same = True
        for values, placed, room in zip(arrays, step_buffer.actions, step_buffer.action_bytes, strict=True):
            same = same and values.dtype == placed.dtype
            if values.shape != (n, *placed.shape[1:]) or values.dtype.kind not in "?biuf" or values.itemsize > room:
                return None
        if not same and keep_dtypes:
            return None
        changed = [] if same else [values.dtype.str for values in arrays]
        if changed:
            step_buffer.view_actions(changed)
        for values, placed in zip(arrays, step_buffer.actions, strict=True):
            placed[rows] = values
        return changed

    def _leaf(self, i: int, env_ids: Any) -> Any:
        rows = self._step_buffer.observations[i]
        if i in self._empty:
            return self._empty[i]()
        if rows is None:
            values = self._lists[i]
            return tuple(values) if env_ids is None else tuple(values[env_id] for env_id in env_ids.tolist())
        if env_ids is not None:
            return rows[env_ids]
        return rows.copy() if self._copy else rows


def put(rows: Any, env_ids: Sequence[int], values: Any) -> None:
    """Write values to some rows of an array or of a list."""
    if not isinstance(rows, list):
        rows[list(env_ids)] = values
        return
    for env_id, value in zip(env_ids, values, strict=True):
        rows[env_id] = value


def add_info(infos: dict[str, Any], info: Any, position: int, n: int) -> dict[str, Any]:
    """Add the info of one sub-environment to the infos of ``n``, by Gymnasium's own function."""
    adder: VectorEnv[Any, Any, Any] = VectorEnv()
    adder.num_envs = n
    return adder._add_info(infos, info, position)


def _check_actions(leaf: Leaf, given: Any, env_ids: Sequence[int], fit: Fit) -> None:
    """Refuse numbers of another shape or kind. Other values pass without a check."""
    values = np.asarray(given)
    if values.dtype.kind not in "?biufc":
        return
    if not values.shape:  # As Gymnasium's vector envs raise it.
        raise TypeError(
            f"the actions{leaf.name} must be a list or an array with one for each of {len(env_ids)} sub-environments, "
            f"got {given}. Pass {len(env_ids)} actions."
        )
    if values.shape[1:] != leaf.shape:
        raise ConfigurationError(
            f"the actions{leaf.name} must have shape {(len(env_ids), *leaf.shape)} for {len(env_ids)} "
            f"sub-environments, got {values.shape}"
        )
    if len(values) != len(env_ids):
        raise ConfigurationError(
            f"actions must have one for each of {len(env_ids)} sub-environments, got {len(values)}"
        )
    is_guise = not hasattr(given, "dtype") and of_one_kind(values.dtype, np.dtype(leaf.dtype))
    if not is_guise and not (leaf.integral and values.dtype.kind in "iub"):
        problem = fit.problem("action", leaf, values, as_is=True)
        if problem is not None:
            raise ConfigurationError(f"the actions{leaf.name} do not fit their space: {problem}")
    for env_id, action in zip(env_ids, values, strict=True) if fit.finite else ():
        if not_finite(action):
            raise ConfigurationError(f"the action{leaf.name} for env_id {env_id} must be finite, got {action!r}")
