"""Access of one worker to its rows of a step buffer: observations, actions, and data that does not fit."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parenv.envs.fitting import Fit, shown
from parenv.errors import ObservationError, embedded
from parenv.memory.spaces import Leaf, flatten, is_single, unflatten
from parenv.memory.status_slot import StatusSlot
from parenv.memory.step_buffer import StepBuffer
from parenv.memory.step_buffer_infos import InfoWriter
from parenv.memory.trees import joined_axes

Where = Any
"""A slice of the step buffer, or an array of env_ids."""


class EnvError(NamedTuple):
    """An exception with the env_id of its sub-environment, or -1."""

    env_id: int
    doing: str
    error: BaseException


class SideChannel:
    """Collects infos, observations and exceptions that do not fit into the step buffer.

    Args:
        writer: Writer of infos to the step buffer.
        status: Status slot, which contains whether there are infos.

    Attributes:
        has_data: Whether there is data to take.
        any_infos: Whether there has ever been an info.
    """

    def __init__(self, writer: InfoWriter, status: StatusSlot) -> None:
        self._writer, self._status = writer, status
        self._infos: list[Any] = []
        self._observations: list[Any] = []
        self._errors: list[EnvError] = []
        self.has_data = self.any_infos = False

    def note(self, env_id: int, info: Any) -> None:
        """Write a non-empty info to the step buffer, or keep it if it does not fit."""
        self.any_infos = True
        self._status.has_infos[0] = True
        written = self._writer.write(env_id, info)
        if not written:
            self._infos.append([env_id, info])
        if self._writer.new or not written:
            self.has_data = True

    def observe(self, env_id: int, values: list[Any]) -> None:
        """Keep the leaves of an observation that have no fixed size."""
        self._observations.append([env_id, values])
        self.has_data = True

    def fail(self, env_id: int, doing: str, error: BaseException) -> None:
        """Keep an exception."""
        self._errors.append(EnvError(env_id, doing, error))
        self.has_data = True

    def take(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return new kinds of infos, ``[env_id, info]`` and ``[env_id, values]`` since the last call."""
        taken = [list(kind) for kind in self._writer.new], self._infos, self._observations
        self._writer.new, self._infos, self._observations = [], [], []
        self.has_data = bool(self._errors)
        return taken

    def take_errors(self) -> list[EnvError]:
        """Return the exceptions since the last call. Call :meth:`take` first, because its caller may add to them."""
        errors, self._errors, self.has_data = self._errors, [], False
        return errors


class ObservationRows:
    """Writes observations with the casts of ``np.stack`` into an existing array.

    The first two observations of each sub-environment are checked. With ``strict_dtype`` or ``check_finite``, all are.

    Args:
        step_buffer: Step buffer to write to.
        own: This worker's rows.
        fit: Checks of observations.
        side: Side channel for values without a fixed size.
    """

    def __init__(self, step_buffer: StepBuffer, own: slice, fit: Fit, side: SideChannel) -> None:
        self._of, self._arrays = step_buffer.spec.observations, step_buffer.observations
        self._own, self._fit, self._side = own, fit, side
        self._single = is_single(self._of)
        self._whole = [
            None if rows is None or not leaf.shape else joined_axes(rows[own])
            for leaf, rows in zip(self._of, self._arrays, strict=True)
        ]
        self._unchecked = np.full(own.stop - own.start, 2)
        self._env_steps = np.zeros(own.stop - own.start, np.int64)
        self._checks = True

    def write(self, columns: Sequence[int], where: Where, observations: Sequence[Any], stepped: bool) -> None:
        """Write the observations of some sub-environments.

        Args:
            columns: Columns, counted from the first of this worker.
            where: Rows of these columns.
            observations: One observation for each.
            stepped: Whether a step returned them, and not a reset.

        Raises:
            Exception: An observation does not fit its space.
        """
        if self._checks:
            self._check(columns, observations, stepped)
        if self._single:
            self._write_leaf(0, where, observations)
            return
        lists = [i for i, leaf in enumerate(self._of) if leaf.dtype is None]
        flat = [flatten(self._of, observation) for observation in observations]
        for i, values in enumerate(zip(*flat, strict=True)):
            if i not in lists:
                self._write_leaf(i, where, values)
        if lists:
            for column, leaves in zip(columns, flat, strict=True):
                self._side.observe(self._own.start + column, [copy.deepcopy(leaves[i]) for i in lists])

    def read(self, env_id: int) -> Any:
        """Return the observation in a row."""
        return unflatten(self._of, [None if array is None else array[env_id] for array in self._arrays])

    def kept(self, observation: Any) -> Any:
        """Copy an observation, whose buffer may be reused. Arrays of other libraries become numpy arrays."""
        if type(observation) is np.ndarray:
            return observation.copy()
        try:
            values = flatten(self._of, observation)
        except (KeyError, IndexError, TypeError):
            return copy.deepcopy(observation)
        if not any(map(_is_foreign, self._of, values)):
            return copy.deepcopy(observation)
        return unflatten(self._of, list(map(_kept_value, self._of, values)))

    def refusal(self, observation: Any, error: Exception) -> ObservationError:
        """Make the error for an observation that could not be written."""
        if isinstance(error, ObservationError):
            return error
        wanted = ", ".join(f"{leaf.name} {leaf.shape} {leaf.dtype}".strip() for leaf in self._of)
        return ObservationError(
            f"the observation {shown(observation)} does not fit its space ({wanted}): "
            f"{type(error).__name__} {embedded(error)}. "
            "Correct the environment or its observation space."
        )

    def _check(self, columns: Sequence[int], observations: Sequence[Any], stepped: bool) -> None:
        self._env_steps[list(columns)] += stepped
        for column, observation in zip(columns, observations, strict=True):
            try:
                for leaf, value in zip(self._of, flatten(self._of, observation), strict=True):
                    if leaf.dtype is not None:
                        self._fit.observation(leaf, value)
            except ObservationError as error:
                error.args = (f"in env step {self._env_steps[column]}: {error.args[0]}",)
                raise
        self._unchecked[list(columns)] -= 1
        self._checks = self._fit.strict or self._fit.finite or bool((self._unchecked > 0).any())

    def _write_leaf(self, i: int, where: Where, values: Any) -> None:
        leaf, rows, n = self._of[i], self._arrays[i], len(values)
        assert rows is not None
        if not leaf.shape:
            array = np.array(values)
            if array.shape != (n,) or not np.can_cast(array.dtype, rows.dtype, "same_kind"):
                raise ValueError(f"shape {array.shape[1:]} and dtype {array.dtype}")
            rows[where] = array
            return
        if type(values) is np.ndarray and is_like(values[0], rows[self._own.start]):
            rows[where] = values
            return
        # np.concatenate checks the sum of the lengths, so equal lengths mean equal shapes.
        if set(map(len, values)) != {leaf.shape[0]}:
            raise ValueError(f"shape {np.shape(values[0])}")
        if where is self._own:
            np.concatenate(values, out=self._whole[i])
            return
        joined = (n * leaf.shape[0], *leaf.shape[1:])
        if type(where) is slice:
            np.concatenate(values, out=rows[where].reshape(joined))
        else:
            array = np.concatenate(values, dtype=rows.dtype)
            if array.shape != joined:
                raise ValueError(f"shape {np.shape(values[0])}")
            rows[where] = array.reshape(n, *leaf.shape)


class ActionRows:
    """Reads actions.

    Args:
        step_buffer: Step buffer to read from.
        own: This worker's rows.
    """

    def __init__(self, step_buffer: StepBuffer, own: slice) -> None:
        self._step_buffer, self._own = step_buffer, own
        self._given: dict[int, Any] = {}

    def give(self, actions: Mapping[int, Any]) -> None:
        """Store actions by env_id that do not fit into the step buffer. Ignore the rows of other workers."""
        mine = range(self._own.start, self._own.stop)
        self._given.update({env_id: action for env_id, action in actions.items() if env_id in mine})

    def read(self, where: Where) -> Any:
        """Return a sequence of the actions of some rows."""
        if self._given:
            env_ids = _env_ids(where)
            # All actions of a request came in the same way. The actions of a later request may be stored already.
            if env_ids[0] in self._given:
                return [self._given.pop(env_id) for env_id in env_ids]
        step_buffer = self._step_buffer
        if any(array is None for array in step_buffer.actions):
            # The process that this one replaces got the actions. This one begins episodes, for which it needs none.
            return [None] * len(_env_ids(where))
        # An environment may keep or change its action, and the next action is written to the same place, so copy it.
        arrays = [array[where].copy() if type(where) is slice else array[where] for array in step_buffer.actions]
        if step_buffer.one_action:
            return arrays[0]
        return [unflatten(step_buffer.spec.actions, values) for values in zip(*arrays, strict=True)]


def is_like(value: Any, row: Any) -> bool:
    """Tell whether a value is an array with the dtype and the shape of a row."""
    return type(value) is np.ndarray and value.dtype is row.dtype and value.shape == row.shape


def _env_ids(where: Where) -> Sequence[int]:
    return range(where.start, where.stop) if type(where) is slice else where.tolist()


def _is_foreign(leaf: Leaf, value: Any) -> bool:
    """Tell whether a value is an array of another library than numpy."""
    return leaf.dtype is not None and hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic)


def _kept_value(leaf: Leaf, value: Any) -> Any:
    return np.asarray(value).astype(leaf.dtype) if _is_foreign(leaf, value) else copy.deepcopy(value)
