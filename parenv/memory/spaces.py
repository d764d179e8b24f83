"""Spaces as leaves: which arrays hold a batch of values of a space, and spaces as plain data for the wire.

A space is a tree; its leaves are arrays of a fixed shape and dtype, or, for spaces without a fixed size, lists. The
functions dispatch on the class of the space, so that a subclass is treated as its base.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from parenv.errors import ConfigurationError, ProtocolError
from parenv.memory.opaque import OpaqueSpace
from parenv.memory.trees import Tree

MAX_SPACE_BYTES = 1 << 28
"""Maximum size of a rebuilt space in bytes, because a description of a few bytes could take gigabytes."""

_DTYPE = re.compile(r"[|<>][biufc][0-9]{1,2}")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""An address in the ``repr`` of a space, such as the address of a function. It differs between processes."""


@dataclass(frozen=True)
class Leaf:
    """One array of a space.

    Args:
        path: Keys from the root: ``str`` into a dict, ``int`` into a tuple.
        shape: Shape of one value; ``()`` for lists.
        dtype: numpy dtype string, or ``None`` if values have no fixed size and are kept in lists.
    """

    path: tuple[str | int, ...]
    shape: tuple[int, ...] = ()
    dtype: str | None = None

    @cached_property
    def integral(self) -> bool:
        """Return whether one value is a single integer, which environments get as an ``int``."""
        return self.shape == () and self.dtype is not None and np.dtype(self.dtype).kind in "iu"

    @property
    def items(self) -> int:
        """Number of numbers in one value."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of one value; 0 if it has no fixed size."""
        return 0 if self.dtype is None else self.items * np.dtype(self.dtype).itemsize

    @property
    def name(self) -> str:
        """The path as text, for messages."""
        return "".join(f"[{key!r}]" for key in self.path)


def leaves(space: Space[Any], path: tuple[str | int, ...] = ()) -> tuple[Leaf, ...]:
    """Flatten a space into its leaves, in the order of the space.

    Text, Sequence, Graph, OneOf and custom spaces have no fixed size and become lists.

    Raises:
        ConfigurationError: A key of a Dict space is not a string.
    """
    parts: Iterable[tuple[str | int, Space[Any]]] = ()
    match space:
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return (Leaf(path, tuple(space.shape or ()), np.dtype(space.dtype).str),)
        case spaces.Dict():
            if odd := [key for key in space.spaces if not isinstance(key, str)]:
                raise ConfigurationError(
                    f"keys of a Dict space must be strings, got {odd[0]!r}. Rename the key in the environment."
                )
            parts = space.spaces.items()
        case spaces.Tuple():
            parts = enumerate(space.spaces)
    return tuple(leaf for key, part in parts for leaf in leaves(part, (*path, key))) or (Leaf(path),)


def each_once(spaces: Iterable[Space[Any]]) -> tuple[list[Space[Any]], list[int]]:
    """Return the distinct spaces, as Gymnasium compares them, and the index of each given space among them."""
    distinct: list[Space[Any]] = []
    which = []
    for space in spaces:
        which.append(next((i for i, other in enumerate(distinct) if other == space), len(distinct)))
        if which[-1] == len(distinct):
            distinct.append(space)
    return distinct, which


def is_single(of: Sequence[Leaf]) -> bool:
    """Return whether the space of these leaves is a single array."""
    return len(of) == 1 and not of[0].path and of[0].dtype is not None


def flatten(of: Sequence[Leaf], tree: Tree) -> list[Any]:
    """Return the values of a tree at the given leaves.

    Raises:
        KeyError, IndexError, TypeError: The tree does not have the structure of the leaves.
    """
    return [_at(tree, leaf.path) for leaf in of]


def stacked(of: Sequence[Leaf], trees: Iterable[Tree]) -> list[Any]:
    """Return the values of several trees by leaf: arrays ``[n, ...]``, or lists if values have no fixed size."""
    by_leaf = zip(*(flatten(of, tree) for tree in trees), strict=True)
    return [
        list(values) if leaf.dtype is None else np.stack([np.asarray(value, leaf.dtype) for value in values])
        for leaf, values in zip(of, by_leaf, strict=True)
    ]


def unflatten(of: Sequence[Leaf], values: Sequence[Any]) -> Tree:
    """Nest values as the space does, the inverse of :func:`flatten`."""
    return values[0] if len(of) == 1 and not of[0].path else _nest([leaf.path for leaf in of], values)


def _nest(paths: Sequence[tuple[str | int, ...]], values: Sequence[Any]) -> Tree:
    if len(paths) == 1 and not paths[0]:
        return values[0]
    branches: dict[str | int, tuple[list[Any], list[Any]]] = {}
    for (key, *rest), value in zip(paths, values, strict=True):
        inner_paths, inner_values = branches.setdefault(key, ([], []))
        inner_paths.append(tuple(rest))
        inner_values.append(value)
    nested = {key: _nest(*inner) for key, inner in branches.items()}
    return tuple(nested.values()) if isinstance(next(iter(nested)), int) else nested


def _at(tree: Tree, path: tuple[str | int, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def describe(space: Space[Any]) -> Any:
    """Return a space as plain data. A custom space becomes its nearest base in Gymnasium, or an opaque space."""
    match space:
        case spaces.Box():
            return ["box", _compact(space.low), _compact(space.high), list(space.shape), np.dtype(space.dtype).str]
        case spaces.Discrete():
            return ["discrete", int(space.n), int(space.start), np.dtype(space.dtype).str]
        case spaces.MultiDiscrete():
            return ["multi_discrete", np.asarray(space.nvec), np.asarray(space.start), np.dtype(space.dtype).str]
        case spaces.MultiBinary():
            return ["multi_binary", space.n if isinstance(space.n, int) else [int(n) for n in space.n]]
        case spaces.Text():
            return ["text", space.min_length, space.max_length, "".join(space.character_list)]
        case spaces.Sequence():
            return ["sequence", describe(space.feature_space), bool(space.stack)]
        case spaces.Graph():
            edge = None if space.edge_space is None else describe(space.edge_space)
            return ["graph", describe(space.node_space), edge]
        case spaces.OneOf():
            return ["one_of", [describe(part) for part in space.spaces]]
        case spaces.Dict():
            # A batched Dict orders its keys by this flag. Older versions of Gymnasium always sort them.
            unsorted = [] if getattr(space, "sort_keys", True) else [False]
            return ["dict", {key: describe(part) for key, part in space.spaces.items()}, *unsorted]
        case spaces.Tuple():
            return ["tuple", [describe(part) for part in space.spaces]]
    kind = type(space)
    text = f"{kind.__qualname__}()" if kind.__repr__ is object.__repr__ else repr(space)
    return ["opaque", _ADDRESS.sub("", text)]


def rebuild(description: Any) -> Space[Any]:
    """Rebuild a space from a description that another process may have sent.

    Raises:
        ProtocolError: The description was not made by :func:`describe`, or its :func:`cost` is above
            :data:`MAX_SPACE_BYTES`.

    >>> rebuild(describe(spaces.Tuple([spaces.Discrete(3), spaces.Text(4)])))
    Tuple(Discrete(3), Text(1, 4, charset=0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz))
    """
    try:
        if cost(description) <= MAX_SPACE_BYTES:
            with np.errstate(all="ignore"):
                return _rebuild(description)
    except Exception as error:
        raise ProtocolError(f"malformed description of a space: {error}") from error
    raise ProtocolError(f"a space must take at most {MAX_SPACE_BYTES} bytes to be sent, got {cost(description)}")


def alike(one: Space[Any], other: Space[Any]) -> bool:
    """Return whether two spaces have the same description. All custom spaces count as equal."""
    first, second = (rebuild(_without_text(describe(space))) for space in (one, other))
    return bool(first == second)


def has_custom(space: Space[Any]) -> bool:
    """Return whether a space is, or contains, a custom space of which only the text is known."""
    description = describe(space)
    return bool(_without_text(description) != description)


def _without_text(description: Any) -> Any:
    if isinstance(description, dict):
        return {key: _without_text(part) for key, part in description.items()}
    if type(description) is not list:
        return description
    return ["opaque", ""] if description[:1] == ["opaque"] else [_without_text(part) for part in description]


def cost(description: Any) -> int:
    """Return the maximum number of bytes of the space of a description.

    Raises:
        Exception: The description was not made by :func:`describe`.
    """
    kind, *rest = description
    return _BYTES_PER_SPACE + int(_COST[kind](*rest))


def _rebuild(description: Any) -> Space[Any]:
    kind, *rest = description
    space: Space[Any] = _REBUILD[kind](*rest)
    return space


def _rebuild_box(low: Any, high: Any, shape: list[int], dtype: str) -> spaces.Box:
    of = dtype_of_numbers(dtype, "biuf")
    return spaces.Box(_bound(low, shape, of), _bound(high, shape, of), tuple(shape), dtype=of.type)


def _bound(bound: Any, shape: list[int], dtype: np.dtype[Any]) -> Any:
    """Return a bound as a number if Gymnasium accepts one, because that saves most of the memory and time."""
    typed = _numbers(bound, "biuf").astype(dtype)
    return typed.item() if not typed.shape and dtype.kind != "b" else np.broadcast_to(typed, shape).copy()


def _rebuild_discrete(n: int, start: int, dtype: str) -> spaces.Discrete:
    # Before Gymnasium 1.2.2, a Discrete space has no argument dtype, and its dtype is always int64.
    of = dtype_of_numbers(dtype)
    more: dict[str, Any] = {} if of == np.int64 else {"dtype": of.type}
    return spaces.Discrete(_typed(int, n), start=_typed(int, start), **more)


def _rebuild_dict(parts: Any, sort_keys: bool = True) -> spaces.Dict:
    space = spaces.Dict(OrderedDict((key, _rebuild(part)) for key, part in parts.items()))
    space.sort_keys = _typed(bool, sort_keys)
    return space


# Gymnasium copies the parts of a Graph or a stacked Sequence, and the copies in these parts. With 30 levels of nesting,
# a description of a few hundred bytes would fill any memory.
_COPIES = 3
_BYTES_PER_SPACE = 1 << 14
_BYTES_PER_CHARACTER = 64
_MAX_DIMENSIONS = 64

_COST: dict[str, Any] = {
    "opaque": len,
    "box": lambda low, high, shape, dtype: _items(shape) * _bounds(dtype_of_numbers(dtype, "biuf")),
    "discrete": lambda n, start, dtype: 0,
    "multi_discrete": lambda nvec, start, dtype: nvec.nbytes + start.nbytes,
    "multi_binary": lambda n: _items(n if type(n) is list else [n]) * _bounds(np.dtype(np.int8)),
    "text": lambda least, most, characters: _BYTES_PER_CHARACTER * len(characters),
    "sequence": lambda feature, stack: cost(feature) * (_COPIES if stack else 1),
    "graph": lambda node, edge: _COPIES * (cost(node) + (0 if edge is None else cost(edge))),
    "one_of": lambda parts: sum(map(cost, parts)),
    "dict": lambda parts, sort_keys=True: sum(map(cost, parts.values())),
    "tuple": lambda parts: sum(map(cost, parts)),
}

_REBUILD: dict[str, Any] = {
    "opaque": lambda text: OpaqueSpace(_typed(str, text)),
    "box": _rebuild_box,
    "discrete": _rebuild_discrete,
    "multi_discrete": lambda nvec, start, dtype: spaces.MultiDiscrete(
        _numbers(nvec), dtype=dtype_of_numbers(dtype).type, start=_numbers(start)
    ),
    "multi_binary": spaces.MultiBinary,
    "text": lambda least, most, characters: spaces.Text(
        _typed(int, most), min_length=_typed(int, least), charset=_typed(str, characters)
    ),
    "sequence": lambda feature, stack: spaces.Sequence(_rebuild(feature), stack=_typed(bool, stack)),
    "graph": lambda node, edge: spaces.Graph(_rebuild(node), None if edge is None else _rebuild(edge)),
    "one_of": lambda parts: spaces.OneOf([_rebuild(part) for part in parts]),
    "dict": _rebuild_dict,
    "tuple": lambda parts: spaces.Tuple([_rebuild(part) for part in parts]),
}


def _bounds(dtype: np.dtype[Any]) -> int:
    """Return the number of bytes of one element of a Box: two bounds, and two flags for bounded elements."""
    return 2 * (dtype.itemsize + 1)


def _typed(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a value must be of type {kind.__name__}, got {value!r}")
    return value


def _items(shape: Any) -> int:
    if type(shape) is not list or len(shape) > _MAX_DIMENSIONS or any(_typed(int, length) < 0 for length in shape):
        raise ValueError(f"a shape must be a list of at most {_MAX_DIMENSIONS} sizes of at least 0, got {shape!r}")
    return math.prod(shape)


def _numbers(array: Any, kinds: str = "iu") -> Any:
    if not isinstance(array, np.ndarray | np.generic) or array.dtype.kind not in kinds:
        raise TypeError(f"a bound or a number of choices must be an array of numbers, got {type(array).__name__}")
    return array


def dtype_of_numbers(text: Any, kinds: str = "iu") -> np.dtype[Any]:
    """Return a dtype of some kinds of numbers, from a text that another process may have sent.

    Raises:
        ValueError, TypeError: The text is not such a dtype.
    """
    if not _DTYPE.fullmatch(text) or text[1] not in kinds:
        raise ValueError(f"{text!r} is not a dtype of numbers")
    dtype: np.dtype[Any] = np.dtype(text)
    return dtype


def _compact(bound: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return one number for a bound that is the same for all elements."""
    return bound.flat[0].reshape(()) if bound.size and (bound == bound.flat[0]).all() else bound
