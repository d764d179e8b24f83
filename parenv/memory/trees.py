"""Arrays of any library, and trees of them: dicts and tuples that are nested, with arrays or lists as leaves.

A leaf is a numpy array, a tensor, or a list. Lists hold the values of spaces without a fixed size.
"""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from operator import methodcaller
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Block = TypeVar("Block", bound=Any, default=np.typing.NDArray[Any], covariant=True)
else:  # Only type checkers need the default, which Python's own has from 3.13 on.
    from typing import TypeVar

    Block = TypeVar("Block")

ALL = slice(None)
"""Every row of an array."""
_IMMUTABLE = int, float, str, bytes, type(None), np.generic
_CONTAINERS = Mapping, list, tuple, set, deque, bytearray
Tree = Any
"""Arrays and lists, nested in dicts and tuples as their space is."""


def map_trees(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to the leaves of one or several trees of the same structure. ``None`` is a leaf."""
    if isinstance(tree, Mapping):
        return {key: map_trees(function, part, *(other[key] for other in others)) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_trees(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def leaves_in(tree: Tree, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the path and the value of each leaf. Keys of dicts become strings."""
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from leaves_in(part, (*path, str(key)))
    elif isinstance(tree, tuple):
        for i, part in enumerate(tree):
            yield from leaves_in(part, (*path, i))
    else:
        yield path, tree


def as_array(value: Any) -> Any:
    """Convert arrays and tensors of any library, numbers and lists to a numpy array. On the CPU, share the memory."""
    if type(value) is np.ndarray:
        return value
    return _array_maker(cast(Hashable, type(value)))(value)


@functools.lru_cache(maxsize=64)
def _array_maker(of: Hashable) -> Callable[[Any], Any]:
    if hasattr(of, "detach"):
        return methodcaller("numpy", force=True)
    return np.from_dlpack if hasattr(of, "__dlpack__") and not hasattr(of, "__array__") else np.asarray


def array_or_list(value: Any) -> Any:
    """Convert a leaf as :func:`as_array` does, but return a list unchanged."""
    return value if type(value) is list else as_array(value)


def as_tensor(value: Any) -> Any:
    """Convert arrays and tensors of any library and numbers to a torch tensor on the same device.

    The memory is shared. Read-only numpy arrays are copied, since torch has no read-only tensors.
    """
    import torch

    if isinstance(value, np.ndarray):
        # torch.as_tensor takes three times as long.
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    if hasattr(value, "__dlpack__") and not hasattr(value, "detach"):
        return torch.utils.dlpack.from_dlpack(value)
    return torch.as_tensor(value)


def to_tensors(device: Any, non_blocking: bool) -> Callable[[Any], Any]:
    """Make a function that moves a leaf to a torch device as a tensor. It returns lists and ``None`` unchanged."""

    def tensor(value: Any) -> Any:
        if value is None or isinstance(value, list):
            return value
        return as_tensor(value).to(device, non_blocking=non_blocking)

    return tensor


def assign(block: Any, index: Any, values: Any) -> None:
    """Write to a part of a leaf: numbers, arrays or tensors to an array or a tensor on any device, a list to a list."""
    if hasattr(block, "copy_"):
        block[index].copy_(as_tensor(values))
    else:
        block[index] = array_or_list(values)


def copy_of(value: Any) -> Any:
    """Copy a leaf. Tensors stay tensors, other arrays become numpy arrays, ``None`` stays ``None``.

    Lists in lists are copied too; what else they hold is shared with the original.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if value is None:
        return None
    if isinstance(value, list):
        return [copy_of(item) if isinstance(item, list) else item for item in value]
    return value.clone() if hasattr(value, "clone") else np.array(value)


def deep_copy(value: Any) -> Any:
    """Copy an array or any other value, with everything that it holds."""
    return value.copy() if isinstance(value, np.ndarray) else copy.deepcopy(value)


def own_copy(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Copy containers and arrays with everything that they hold, and share all other objects.

    An environment may return a simulator or a lock in its infos, so :func:`copy.deepcopy` could fail or take long.

    >>> shared = object()
    >>> copied = own_copy({"a": [1, np.zeros(1)], "b": shared})
    >>> copied["a"], copied["b"] is shared
    ([1, array([0.])], True)
    """
    kind = type(value)
    if issubclass(kind, _IMMUTABLE) or not (issubclass(kind, _CONTAINERS) or hasattr(kind, "__array__")):
        return value
    known = {} if known is None else known
    if id(value) not in known:
        known[id(value)] = value  # A container may hold itself.
        known[id(value)] = _copied(value, known)
    return known[id(value)]


def _copied(value: Any, known: dict[int, Any]) -> Any:
    try:
        if isinstance(value, tuple):
            parts = [own_copy(part, known) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if not isinstance(value, np.ndarray | dict | list | deque):
            if hasattr(value, "clone"):
                return value.clone()
            return copy.copy(value) if isinstance(value, set) else copy.deepcopy(value)
        copied: Any = copy.copy(value)
        known[id(value)] = copied
        if not isinstance(value, np.ndarray):
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                copied[key] = own_copy(part, known)
        elif value.dtype == object:
            for index in np.ndindex(value.shape):
                copied[index] = own_copy(value[index], known)
        return copied
    except Exception:
        return value  # A class of the environment that cannot be copied.


def copy_as(like: Any, value: Any) -> Any:
    """Copy a numpy array to a tensor of the dtype and on the device of ``like``, or to an array if that is not one."""
    if not hasattr(like, "detach"):
        return np.array(value)
    import torch

    return torch.tensor(value).to(like)


def copy_with(values: Any, rows: Any, others: Any) -> Any:
    """Copy an array or tensor, and write others to these rows of the copy."""
    values = copy_of(values)
    values[rows] = others
    return values


def joined_axes(values: Any) -> Any:
    """Join the first two axes of an array or tensor."""
    # reshape(-1, ...) cannot compute the size if another size is 0.
    first, second, *others = values.shape
    return values.reshape(first * second, *others)


def concatenated(*parts: Any) -> Any:
    """Join arrays, tensors or lists along the first axis. If a part is ``None``, return ``None``."""
    if any(part is None for part in parts):
        return None
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]
    if hasattr(parts[0], "detach"):
        import torch

        return torch.cat(parts)
    return np.concatenate(parts)
