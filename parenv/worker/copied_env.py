"""What a copy of an environment gives back to the original: random states, and attributes that have changed."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from parenv.envs.state import layers_of
from parenv.memory.sampling import parts_of
from parenv.protocol.data import is_data, pack

CHANGES = "parenv_changes"
"""Attribute of a copy that returns its changes when it is called."""
_RANDOM = ("_np_random", "_np_random_seed")
_NEW = object()
"""In place of the hash of an attribute that did not exist."""


class EnvChanges:
    """The random states of a copied environment, and the attributes that have changed since it was made.

    Args:
        env: Copy of an environment.
        is_own: Whether each generator of :func:`samplers_of` continues the one of the original.

    >>> import gymnasium as gym
    >>> original, copied = gym.make("CartPole-v1"), gym.make("CartPole-v1")
    >>> changes = EnvChanges(copied, [True, True])
    >>> copied.unwrapped.gravity = 1.6
    >>> take_back(original, changes())
    >>> original.unwrapped.gravity
    1.6
    """

    def __init__(self, env: Any, is_own: Sequence[bool]) -> None:
        self._env, self._is_own = env, is_own
        self._before = [_contents(layer) for layer in layers_of(env)]

    def __call__(self) -> dict[str, Any]:
        """Return the changes as plain data. Random states without a plain form are ``None``."""
        generator, samplers = generator_of(self._env), samplers_of(self._env)
        return {
            "generator": generator if is_data(generator) else None,
            "samplers": [
                one if is_own and is_data(one) else None for one, is_own in zip(samplers, self._is_own, strict=False)
            ],
            "attributes": [_changed(*pair) for pair in zip(layers_of(self._env), self._before, strict=False)],
        }


def take_back(env: Any, changes: Mapping[str, Any]) -> None:
    """Give an environment the changes of its copy. Containers are changed in place, because others may hold them."""
    if changes["generator"] is not None:
        set_generator(env, tuple(changes["generator"]))
    set_samplers(env, changes["samplers"])
    for layer, attributes in zip(layers_of(env), changes["attributes"], strict=False):
        mine = vars(layer)
        for name, value in attributes.items():
            mine[name] = _continued(mine.get(name), copy.deepcopy(value))


def generator_of(env: Any) -> tuple[Any, Any]:
    """Return the random generator of an environment and its seed. Each is ``None`` before the first use."""
    inner = env.unwrapped
    return tuple(getattr(inner, name, None) for name in _RANDOM)  # type: ignore[return-value]


def set_generator(env: Any, generator: tuple[Any, Any]) -> None:
    """Set the generator that :func:`generator_of` has returned for another environment."""
    env.unwrapped._np_random, env.unwrapped._np_random_seed = generator


def samplers_of(env: Any) -> list[Any]:
    """Return the generators of an environment's spaces and their parts, each ``None`` before the first use."""
    return [getattr(space, "_np_random", None) for space in _spaces_of(env)]


def set_samplers(env: Any, samplers: Sequence[Any]) -> None:
    """Set the generators that :func:`samplers_of` has returned for another environment, except for ``None``."""
    for space, sampler in zip(_spaces_of(env), samplers, strict=False):
        if sampler is not None:
            space._np_random = _continued(space._np_random, sampler)


def _spaces_of(env: Any) -> Iterator[Space[Any]]:
    for layer in layers_of(env):
        for name in ("observation_space", "action_space"):
            if isinstance(space := getattr(layer, name, None), Space):
                yield from parts_of(space)


def _contents(layer: Any) -> dict[str, tuple[Any, Any]]:
    """Return a hash and the type of each attribute that is plain data, and ``None`` and the value of each other one."""
    found = {}
    for name, value in vars(layer).items():
        mark = _hash(value)
        found[name] = (mark, value if mark is None else type(value))
    return found


def _changed(layer: Any, before: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Return the attributes of a layer that are new, or had another value of the same type before.

    ``None`` often becomes a handle, such as the number of a connection, which has no meaning in another process.
    """
    found = {}
    for name, value in vars(layer).items():
        if name in (*_RANDOM, CHANGES):
            continue
        mark = _hash(value)
        old, kept = before.get(name, (_NEW, type(value)))
        if mark is None and kept is not value:
            # Other attributes may tell that this object exists. It cannot be sent, so the original does not have it.
            return {}
        if mark is not None and old is not None and mark != old and kept is type(value):
            found[name] = _sendable(value)
    return found


def _hash(value: Any) -> int | None:
    try:
        text, buffers = pack(_sendable(value), views=True)
    except Exception:  # Objects of the user may raise any error while they are read.
        return None
    return hash((text, *map(bytes, buffers)))


def _sendable(value: Any) -> Any:
    return list(value) if isinstance(value, deque | set) else value


def _continued(mine: Any, value: Any) -> Any:
    """Return a value in the object that had the previous one, if its kind permits."""
    match mine, value:
        case list() | deque(), list():
            mine.clear()
            mine.extend(value)
        case (dict(), dict()) | (set(), list()):
            mine.clear()
            mine.update(value)
        case np.random.Generator(), np.random.Generator() if type(mine.bit_generator) is type(value.bit_generator):
            mine.bit_generator.state = value.bit_generator.state
        case _:
            return value
    return mine
