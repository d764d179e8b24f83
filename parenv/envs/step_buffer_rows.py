"""What one worker writes to its rows of a step buffer, and reads from them, apart from the steps themselves."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parenv.envs.fitting import Fit, shown
from parenv.errors import ObservationError
from parenv.memory.spaces import Leaf, flatten, is_single, unflatten
from parenv.memory.status_slot import StatusSlot
from parenv.memory.step_buffer import StepBuffer
from parenv.memory.step_buffer_infos import InfoWriter

Where = Any
"""Rows of the step buffer: a slice, or an array of env_ids."""


class EnvError(NamedTuple):
    """An exception, and the sub-environment that was at work, or -1."""

    env_id: int
    doing: str
    error: BaseException


class SideChannel:
    """What does not lie on the step buffer, until somebody takes it; infos find their way here where they do not fit.

    Args:
        writer: writes infos onto the step buffer.
        progress: where to say that there are infos.

    Attributes:
        has_data: whether there is anything to take.
        any_infos: whether there has ever been an info.
    """

    def __init__(self, writer: InfoWriter, progress: StatusSlot) -> None:
        self._writer, self._progress = writer, progress
        self._infos: list[Any] = []
        self._observations: list[Any] = []
        self._errors: list[EnvError] = []
        self.has_data = self.any_infos = False

    def note(self, env_id: int, info: Any) -> None:
        """Write an info that is not empty."""
        self.any_infos = True
        self._progress.has_infos[0] = True
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
        """New kinds of infos, ``[env_id, info]`` and ``[env_id, values]`` since the last time."""
        taken = [list(kind) for kind in self._writer.new], self._infos, self._observations
        self._writer.new, self._infos, self._observations = [], [], []
        self.has_data = bool(self._errors)
        return taken

    def take_errors(self) -> list[EnvError]:
        """Exceptions since the last time; to be taken behind the rest, which may add to them."""
        errors, self._errors, self.has_data = self._errors, [], False
        return errors


class ObservationRows:
    """Writes observations, cast as ``np.stack`` casts into an array that is given.

    The first ones of each sub-environment, of a reset and a step, are checked, or all where the user wants it.

    Args:
        step_buffer: where they go.
        own: this worker's rows.
        fit: how they must fit their space.
        side: where values without a fixed size go.
    """

    def __init__(self, step_buffer: StepBuffer, own: slice, fit: Fit, side: SideChannel) -> None:
        self._of, self._arrays = step_buffer.spec.observations, step_buffer.observations
        self._own, self._fit, self._side = own, fit, side
        self._single = is_single(self._of)
        self._whole = [
            None if rows is None or not leaf.shape else rows[own].reshape(-1, *leaf.shape[1:])
            for leaf, rows in zip(self._of, self._arrays, strict=True)
        ]
        self._unchecked = np.full(own.stop - own.start, 2)
        self._env_steps = np.zeros(own.stop - own.start, np.int64)
        self._checks = True

    def write(self, columns: Sequence[int], where: Where, observations: Sequence[Any], stepped: bool) -> None:
        """Write what some observe.

        Args:
            columns: which, counted from the first of this worker.
            where: their rows.
            observations: of each.
            stepped: whether they have taken a step for it.

        Raises:
            Exception: one does not fit its space.
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
        """The observation that a row has."""
        return unflatten(self._of, [None if array is None else array[env_id] for array in self._arrays])

    def kept(self, observation: Any) -> Any:
        """A copy, since the environment may reuse its buffers; arrays of other libraries as the space has them."""
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
        """The error for an observation that could not be written."""
        if isinstance(error, ObservationError):
            return error
        wanted = ", ".join(f"{leaf.name} {leaf.shape} {leaf.dtype}".strip() for leaf in self._of)
        return ObservationError(
            f"the observation {shown(observation)} does not fit its space, which says {wanted}: "
            f"{type(error).__name__} {error}. Correct the environment or its observation space"
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

    def _write_leaf(self, i: int, where: Where, values: Sequence[Any]) -> None:
        leaf, rows, n = self._of[i], self._arrays[i], len(values)
        assert rows is not None
        if not leaf.shape:
            array = np.array(values)
            if array.shape != (n,) or not np.can_cast(array.dtype, rows.dtype, "same_kind"):
                raise ValueError(f"shape {array.shape[1:]} and dtype {array.dtype}")
            rows[where] = array
            return
        # Together with the sum, which concatenate checks, equal lengths mean equal shapes.
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
        step_buffer: where they lie.
        own: this worker's rows.
    """

    def __init__(self, step_buffer: StepBuffer, own: slice) -> None:
        self._step_buffer, self._own = step_buffer, own
        self._given: dict[int, Any] = {}

    def give(self, actions: Mapping[int, Any]) -> None:
        """Actions by env_id that do not lie on the step buffer; those of other workers' rows are left out."""
        mine = range(self._own.start, self._own.stop)
        self._given.update({env_id: action for env_id, action in actions.items() if env_id in mine})

    def read(self, where: Where) -> Any:
        """The actions of some rows, one after the other."""
        if self._given:
            env_ids = range(where.start, where.stop) if type(where) is slice else where.tolist()
            # All rows of a request were given in the same way; those of a later request may be here already.
            if env_ids[0] in self._given:
                return [self._given.pop(env_id) for env_id in env_ids]
        step_buffer = self._step_buffer
        # A copy, because an environment may keep or change its action, and the next one is written to the same place.
        arrays = [array[where].copy() if type(where) is slice else array[where] for array in step_buffer.actions]
        if step_buffer.one_action:
            return arrays[0]
        return [unflatten(step_buffer.spec.actions, values) for values in zip(*arrays, strict=True)]


def _is_foreign(leaf: Leaf, value: Any) -> bool:
    """Whether a value is an array of another library, to be one of numpy's."""
    return leaf.dtype is not None and hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic)


def _kept_value(leaf: Leaf, value: Any) -> Any:
    return np.asarray(value).astype(leaf.dtype) if _is_foreign(leaf, value) else copy.deepcopy(value)
