"""The random generators with which a space is sampled. They are sent beside its description."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from parenv.errors import ProtocolError


def generators(space: Space[Any]) -> list[Any]:
    """Return copies of the random generators of a space and of all its parts, or ``None`` for a part without one.

    A generator that an earlier part shares is replaced by the number of that part.
    """
    found = [getattr(one, "_np_random", None) for one in parts_of(space)]
    first = {id(generator): i for i, generator in reversed(list(enumerate(found)))}
    return [
        copy.deepcopy(generator) if generator is None or first[id(generator)] == i else first[id(generator)]
        for i, generator in enumerate(found)
    ]


def set_generators(space: Space[Any], of_each: Sequence[Any]) -> None:
    """Give a space the random generators of another space of the same structure.

    Args:
        space: Space to change.
        of_each: Generators that another process may have sent, in the form of :func:`generators`.

    Raises:
        ProtocolError: The generators do not have the form for such a space.
    """
    parts = list(parts_of(space))
    if type(of_each) is not list or len(of_each) != len(parts):
        raise ProtocolError(f"random generators of a space must be a list of {len(parts)}, one for each part")
    for i, (part, generator) in enumerate(zip(parts, of_each, strict=True)):
        if type(generator) is int and 0 <= generator < i:
            part._np_random = parts[generator]._np_random
        elif generator is None or type(generator) is np.random.Generator:
            part._np_random = generator  # type: ignore[assignment,unused-ignore]
        else:
            raise ProtocolError(f"random generator {i} of a space must be a numpy Generator, got {type(generator)}")


def parts_of(space: Space[Any]) -> Iterator[Space[Any]]:
    """Yield a space and all its parts."""
    yield space
    for part in _parts(space):
        yield from parts_of(part)


def _parts(space: Space[Any]) -> Iterable[Space[Any]]:
    match space:
        case spaces.Dict():
            return space.spaces.values()
        case spaces.Tuple() | spaces.OneOf():
            return space.spaces
        case spaces.Sequence():
            return [space.feature_space]
        case spaces.Graph():
            return [part for part in (space.node_space, space.edge_space) if part is not None]
    return ()
