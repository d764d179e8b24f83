"""Arrays between a ``VectorEnv`` of any library and a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.envs.values import Rows
from parenv.errors import ObservationError
from parenv.memory.spaces import Leaf, is_single, unflatten
from parenv.memory.trees import array_or_list, as_array, as_tensor, copy_of


class EnvArrays:
    """Arrays between a ``VectorEnv`` of any library and numpy, as far as can be over the same memory.

    Args:
        env: for messages.
        actions: leaves of its action space.
    """

    def __init__(self, env: Any, actions: Sequence[Leaf]) -> None:
        self._env, self._action_leaves, self._is_one_action = env, actions, is_single(actions)
        self._devices: dict[str, Any] = {}
        self._like: Any = None

    def settle(self, observations: Sequence[Any]) -> None:
        """Find out from its first observations whether it is one of tensors, which then get tensors as actions."""
        self._like = next((values for values in observations if hasattr(values, "detach")), None)

    def read(self, name: str, values: Any, shape: tuple[int, ...]) -> Any:
        """What the environment has returned, as numpy's.

        Raises:
            ObservationError: it has another shape, or has moved to another device.
        """
        if type(values) is np.ndarray and values.shape == shape:  # Behind each call lies code that no cache holds.
            return values
        self._check_device(name, values)
        array = as_array(values)
        if array.shape != shape:
            raise ObservationError(
                f"the VectorEnv returned {name} of shape {array.shape}; for {shape[0]} sub-environments they must be "
                f"of shape {shape} (the shapes differ)"
            )
        return array

    def stay(self, name: str, values: Any, row: Any) -> bool:
        """Whether what the environment has returned goes to a row as it is, from one place on a device to another.

        Raises:
            ObservationError: it has moved to another device.
        """
        if type(row) is np.ndarray or isinstance(values, np.ndarray) or not hasattr(values, "__dlpack__"):
            return False
        self._check_device(name, values)
        tensor = as_tensor(values)
        return bool(tensor.shape == row.shape and tensor.dtype == row.dtype)

    def actions(self, rows: Rows) -> Any:
        """Actions as the environment wants them, with memory of their own."""
        if self._is_one_action:
            return self._own(rows[0])
        return unflatten(self._action_leaves, [self._own(values) for values in rows])

    def _own(self, values: Any) -> Any:
        if self._like is not None and not isinstance(values, list):
            return as_tensor(copy_of(values)).to(self._like.device)
        return copy_of(array_or_list(values))

    def _check_device(self, name: str, values: Any) -> None:
        if type(values) is np.ndarray or (device := getattr(values, "device", None)) is None:
            return
        before = self._devices.setdefault(name, device)
        if device is not before and device != before:
            raise ObservationError(
                f"the {name} of {self._env} were on {before} and are now on {device}: let the environment keep its "
                "arrays on one device"
            )
