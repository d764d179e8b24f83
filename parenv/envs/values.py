"""Functions that write one observation into a row, and split a batch of actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

import numpy as np

from parenv.envs.fitting import Fit
from parenv.errors import ObservationError, embedded
from parenv.memory.spaces import Leaf, flatten, is_single, unflatten
from parenv.memory.trees import deep_copy

Rows = Sequence[Any]
"""One array or list ``[B, *shape]`` per leaf of a space."""


def row_writer(of: Sequence[Leaf], fit: Fit) -> Callable[[Rows, int, Any], None]:
    """Make a function that writes one observation to index ``i`` of rows, and refuses one that does not fit.

    The function writes a copy, because environments may reuse their buffers.
    """
    if is_single(of):
        return _array_writer(of[0], fit)
    writers = [_list_writer(leaf) if leaf.dtype is None else _array_writer(leaf, fit) for leaf in of]

    def write(rows: Rows, i: int, observation: Any) -> None:
        try:
            values = flatten(of, observation)
        except (KeyError, IndexError, TypeError) as error:
            raise ObservationError(
                f"the observation {observation!r} does not have the structure of its space: "
                f"{type(error).__name__} {embedded(error)}. Correct the environment or its observation space."
            ) from error
        for j, write_leaf in enumerate(writers):
            write_leaf(rows[j : j + 1], i, values[j])

    return write


def _array_writer(leaf: Leaf, fit: Fit) -> Callable[[Rows, int, Any], None]:
    shape, dtype = leaf.shape, np.dtype(leaf.dtype)

    def write(rows: Rows, i: int, value: Any) -> None:
        if fit.finite or type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
            value = fit.observation(leaf, value)
        rows[0][i] = value

    return write


def _list_writer(leaf: Leaf) -> Callable[[Rows, int, Any], None]:
    def write(rows: Rows, i: int, value: Any) -> None:
        if i == len(rows[0]):
            rows[0].append(None)
        rows[0][i] = deep_copy(value)

    return write


def action_splitter(of: Sequence[Leaf]) -> Callable[[Rows], Sequence[Any]]:
    """Make a function that splits a batch of actions into one action per sub-environment.

    Discrete actions become numpy integers, as ``SyncVectorEnv`` passes them; Gymnasium's ``contains`` takes twice as
    long for Python integers. Arrays become rows of a copy.
    """
    each: list[Callable[[Any], Any]] = [list if leaf.integral else methodcaller("copy") for leaf in of]
    if len(of) == 1 and not of[0].path:
        (only,) = each
        return lambda actions: only(actions[0])

    def split(actions: Rows) -> Sequence[Any]:
        columns = [one_each(values) for one_each, values in zip(each, actions, strict=True)]
        return [unflatten(of, values) for values in zip(*columns, strict=True)]

    return split
