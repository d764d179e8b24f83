"""Calls of the user to single sub-environments, in pools and vector envs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parenv.envs.state import layers_of


def _call(env: Any, position: int, name: str, args: Any, kwargs: Any) -> Any:
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def _is_wrapped(env: Any, position: int, module: str, name: str) -> bool:
    """Return whether a wrapper is of this class or a subclass. By name, so that the worker need not import it."""
    kinds = {kind for layer in layers_of(env)[:-1] for kind in type(layer).__mro__}
    return any((kind.__module__, kind.__qualname__) == (module, name) for kind in kinds)


ENV_METHODS: dict[str, Callable[..., Any]] = {
    "call": _call,
    "get_attr": lambda env, position, name: env.get_wrapper_attr(name),
    "set_attr": lambda env, position, values, name: env.set_wrapper_attr(name, values[position]),
    "is_wrapped": _is_wrapped,
}
"""Functions ``(env, position in the call, *arguments) -> answer`` by name."""
