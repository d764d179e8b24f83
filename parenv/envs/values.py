"""One observation into a row, one action out of a batch: where values cross between environments and blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

import numpy as np

from parenv.envs.fitting import Fit, not_finite
from parenv.errors import ObservationError
from parenv.memory.spaces import Leaf, flatten, is_single, unflatten
from parenv.memory.trees import deep_copy

Rows = Sequence[Any]
"""One array or list ``[B, *shape]`` per leaf of a space."""


def row_writer(of: Sequence[Leaf], fit: Fit) -> Callable[[Rows, int, Any], None]:
    """A function that writes one observation to index ``i`` of the given rows, and refuses what does not fit.

    What is written is a copy, so that an environment may reuse its buffer.
    """
    if is_single(of):
        return _array_writer(of[0], fit)
    writers = [_list_writer(leaf) if leaf.dtype is None else _array_writer(leaf, fit) for leaf in of]

    def write(rows: Rows, i: int, observation: Any) -> None:
        try:
            values = flatten(of, observation)
        except (KeyError, IndexError, TypeError) as error:
            raise ObservationError(
                f"the observation {observation!r} has not the structure of its space: {type(error).__name__} {error}"
            ) from error
        for j, write_leaf in enumerate(writers):
            write_leaf(rows[j : j + 1], i, values[j])

    return write


def _array_writer(leaf: Leaf, fit: Fit) -> Callable[[Rows, int, Any], None]:
    shape, dtype = leaf.shape, np.dtype(leaf.dtype)

    def write(rows: Rows, i: int, value: Any) -> None:
        if fit.finite or type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
            value = checked(leaf, value, fit)
        rows[0][i] = value

    return write


def _list_writer(leaf: Leaf) -> Callable[[Rows, int, Any], None]:
    def write(rows: Rows, i: int, value: Any) -> None:
        if i == len(rows[0]):
            rows[0].append(None)
        rows[0][i] = deep_copy(value)

    return write


def checked(leaf: Leaf, value: Any, fit: Fit) -> Any:
    """One value of an observation as an array that can be written into a row of its leaf.

    What fits in another guise is no matter: numpy scalars, Python numbers, lists of them, integers of another width.

    Raises:
        ObservationError: it does not fit, or is not finite where it must be.
    """
    expected = np.dtype(leaf.dtype)
    why = ""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ObservationError(f"the observation{leaf.name} {value!r} is not an array: {error}") from error
    if array.shape == leaf.shape:
        is_guise = leaf.integral or not isinstance(value, np.ndarray | np.generic)
        problem = None if is_guise and _survives(array, expected) else fit.problem("observation", leaf, array)
        if problem is None:
            check_finite(leaf, array, fit)
            return array
        why = f" ({problem})"
    raise ObservationError(
        f"the observation{leaf.name} has shape {array.shape} and dtype {array.dtype}; its space says {leaf.shape} and "
        f"{expected}{why}. Convert it in the environment, or correct the observation space"
    )


def check_finite(leaf: Leaf, value: Any, fit: Fit) -> None:
    """Check one value of an observation, if the user wants that.

    Raises:
        ObservationError: it is not finite.
    """
    if fit.finite and not_finite(value):
        raise ObservationError(f"the observation{leaf.name} is not finite: {shown(value)}")


def shown(value: Any) -> str:
    """A value in a message, shortened."""
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."


def _survives(array: Any, expected: Any) -> bool:
    """Whether a change of dtype within the same kind, or from integers to floats, keeps what the values say."""
    if expected.kind == "f":
        return array.dtype.kind in "iuf"
    kinds = {"i": "iub", "u": "iub", "b": "b"}.get(expected.kind, "")
    return array.dtype.kind in kinds and np.array_equal(array.astype(expected), array)


def action_splitter(of: Sequence[Leaf]) -> Callable[[Rows], Sequence[Any]]:
    """A function that makes one action per sub-environment of a batch.

    Numpy's integers for Discrete, as the space samples them and ``SyncVectorEnv`` gives them; Gymnasium's ``contains``
    takes twice as long for Python's. A row of a copy for arrays.
    """
    each: list[Callable[[Any], Any]] = [list if leaf.integral else methodcaller("copy") for leaf in of]
    if len(of) == 1 and not of[0].path:
        (only,) = each
        return lambda actions: only(actions[0])

    def split(actions: Rows) -> Sequence[Any]:
        columns = [one_each(values) for one_each, values in zip(each, actions, strict=True)]
        return [unflatten(of, values) for values in zip(*columns, strict=True)]

    return split
