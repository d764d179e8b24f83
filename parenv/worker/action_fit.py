"""Convert the actions of a policy to the action space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.envs.fitting import Fit
from parenv.errors import PolicyOutputError
from parenv.memory.layout import torch_dtype
from parenv.memory.spaces import Leaf, flatten, is_single
from parenv.memory.trees import array_or_list

_WAYS_OUT = (
    'A network that returns logits or a tuple goes through TorchPolicy(module, method="...", '
    'outputs=("actions", ...)) or a callable that picks the actions'
)


class ActionFit:
    """Converts the actions of a policy to the action space.

    Args:
        actions: Leaves of the space.
        fit: Rules for actions that do not fit.

    Attributes:
        dtype: Dtype of the space, if it is a single array; otherwise ``None``.
        shape: Shape of one action of such a space.
    """

    def __init__(self, actions: Sequence[Leaf], fit: Fit) -> None:
        self._actions, self._fit = actions, fit
        # A single array of this dtype and shape is taken without further checks. None matches nothing.
        single = is_single(actions)
        self.dtype = np.dtype(actions[0].dtype) if single else None
        self.shape = actions[0].shape if single else ()

    def fitted(self, by_leaf: Sequence[Any], batch: int) -> Sequence[Any]:
        """Convert actions by leaf to arrays or lists that can be written into rows of the space.

        Raises:
            PolicyOutputError: The actions do not fit the space.
        """
        if self.dtype is not None:
            values = _array(by_leaf[0])
            if type(values) is np.ndarray and values.dtype is self.dtype and values.shape == (batch, *self.shape):
                return (values,)
        return [self._fitted(leaf, values, batch) for leaf, values in zip(self._actions, by_leaf, strict=True)]

    def kept(self, by_leaf: Sequence[Any], batch: int) -> Sequence[Any]:
        """Convert as :meth:`fitted` does, but keep tensors that fit on their device."""
        pairs = zip(self._actions, by_leaf, strict=True)
        all_fit = all(_is_fitting_tensor(leaf, values, batch) for leaf, values in pairs)
        return by_leaf if all_fit else self.fitted(by_leaf, batch)

    def by_leaf(self, actions: Any) -> list[Any]:
        """Split actions into leaves.

        Raises:
            PolicyOutputError: The actions are not nested like the space.
        """
        try:
            return flatten(self._actions, actions)
        except (KeyError, IndexError, TypeError) as error:
            names = ", ".join(leaf.name or "values without a fixed size" for leaf in self._actions)
            raise PolicyOutputError(
                f"the policy must return actions nested as the action space is, with {names}: "
                f"{type(error).__name__} {error}"
            ) from error

    def _fitted(self, leaf: Leaf, values: Any, batch: int) -> Any:
        if leaf.dtype is None:
            return list(values) if isinstance(values, tuple) else array_or_list(values)
        array, wanted = np.asarray(_array(values)), (batch, *leaf.shape)
        if array.shape == wanted and array.dtype == leaf.dtype:
            return array
        problem: str | None = "its shape is another"
        if array.shape == wanted:
            guise = leaf.integral and array.dtype.kind in "iub" and np.array_equal(array.astype(leaf.dtype), array)
            problem = None if guise else self._fit.problem("action", leaf, array)
            if problem is None:
                return array
        raise PolicyOutputError(
            f"the policy returned actions{leaf.name} of shape {array.shape} and dtype {array.dtype}, but the space "
            f"needs shape {wanted} and dtype {np.dtype(leaf.dtype)} for {batch} sub-environments ({problem}). "
            f"{_WAYS_OUT}"
        )


def _array(values: Any) -> Any:
    try:
        return array_or_list(values)
    except ValueError as error:
        raise PolicyOutputError(
            f"the policy returned a {type(values).__name__} that is no array. {_WAYS_OUT}"
        ) from error


def _is_fitting_tensor(leaf: Leaf, values: Any, batch: int) -> bool:
    is_tensor = leaf.dtype is not None and hasattr(values, "detach") and values.shape == (batch, *leaf.shape)
    return is_tensor and values.dtype == torch_dtype(leaf.dtype)
