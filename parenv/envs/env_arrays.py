"""Conversion of arrays between a ``VectorEnv`` of any library and a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.envs.values import Rows
from parenv.errors import ObservationError
from parenv.memory.spaces import Leaf, is_single, unflatten
from parenv.memory.trees import array_or_list, as_array, as_tensor, copy_of


class EnvArrays:
    """Converts arrays between a ``VectorEnv`` of any library and numpy, over the same memory if possible.

    Args:
        env: Environment, for messages.
        actions: Leaves of the action space.
    """

    def __init__(self, env: Any, actions: Sequence[Leaf]) -> None:
        self._env, self._action_leaves, self._is_one_action = env, actions, is_single(actions)
        self._devices: dict[str, Any] = {}
        self._like: Any = None

    def settle(self, observations: Sequence[Any]) -> None:
        """Look for tensors in the first observations. If there are any, actions become tensors on their device."""
        self._like = next((values for values in observations if hasattr(values, "detach")), None)

    def read(self, name: str, values: Any, shape: tuple[int, ...]) -> Any:
        """Convert a result of the environment to a numpy array.

        Raises:
            ObservationError: The result has another shape, or has moved to another device.
        """
        # This is the usual case. After a wait, the code of the calls below is not in the cache any more.
        if type(values) is np.ndarray and values.shape == shape:
            return values
        self._check_device(name, values)
        array = as_array(values)
        if array.shape != shape:
            raise ObservationError(
                f"the {name} of the VectorEnv must have shape {shape} for {shape[0]} sub-environments, got "
                f"{array.shape}. Correct the environment."
            )
        return array

    def stay(self, name: str, values: Any, row: Any) -> bool:
        """Tell whether a result can be copied to a row on a device without numpy.

        Raises:
            ObservationError: The result has moved to another device.
        """
        if type(row) is np.ndarray or isinstance(values, np.ndarray) or not hasattr(values, "__dlpack__"):
            return False
        self._check_device(name, values)
        tensor = as_tensor(values)
        return bool(tensor.shape == row.shape and tensor.dtype == row.dtype)

    def actions(self, rows: Rows) -> Any:
        """Copy actions to arrays or tensors for the environment."""
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
                f"the {name} of {self._env} must stay on the device {before}, got {device}. Keep all arrays of the "
                "environment on one device."
            )
