"""The state of an environment as plain data, where it offers one through ``get_state`` and ``set_state``."""

from __future__ import annotations

from typing import Any

from gymnasium import Wrapper
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

_STATELESS = (OrderEnforcing, PassiveEnvChecker)


def get_state(env: Any) -> dict[str, Any] | None:
    """The state of an environment with its wrappers; ``None`` if the innermost has no ``get_state``.

    Returns:
        ``layers``: from the outermost, what each one's ``get_state`` returned, or a time limit's count; ``np_random``:
        the generator, which ``get_state`` need not have; ``unknown``: names of wrappers that offer nothing.
    """
    if not hasattr(env.unwrapped, "get_state"):
        return None
    layers, unknown = [], []
    for layer in layers_of(env):
        if _has(layer, "get_state"):
            layers.append(layer.get_state())
        elif isinstance(layer, TimeLimit):
            layers.append(layer._elapsed_steps)
        else:
            layers.append(None)
            if not isinstance(layer, _STATELESS):
                unknown.append(type(layer).__name__)
    return {"layers": layers, "np_random": getattr(env.unwrapped, "_np_random", None), "unknown": unknown}


def set_state(env: Any, state: dict[str, Any]) -> None:
    """Bring an environment that has been reset into a state of :func:`get_state`."""
    if state["np_random"] is not None:
        env.unwrapped._np_random = state["np_random"]
    for layer, value in zip(layers_of(env), state["layers"], strict=True):
        if _has(layer, "set_state"):
            layer.set_state(value)
        elif isinstance(layer, TimeLimit):
            layer._elapsed_steps = value


def layers_of(env: Any) -> list[Any]:
    """The wrappers of an environment, single or vector, the outermost first, and what they wrap."""
    found = [env]
    while isinstance(found[-1], Wrapper | VectorWrapper):
        found.append(found[-1].env)
    return found


def _has(layer: Any, method: str) -> bool:
    """Whether a layer itself has a method, not one that it passes on to."""
    return hasattr(type(layer), method)
