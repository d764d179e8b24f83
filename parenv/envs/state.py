"""The state of an environment as plain data, if the environment has ``get_state`` and ``set_state``."""

from __future__ import annotations

from typing import Any

from gymnasium import Wrapper
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

_STATELESS = (OrderEnforcing, PassiveEnvChecker)


def get_state(env: Any) -> dict[str, Any] | None:
    """Return the state of an environment with its wrappers; ``None`` if the innermost has no ``get_state``.

    Returns:
        ``layers``: the state of each wrapper from the outermost, or the count of a time limit. ``np_random``: the
        random generator, which ``get_state`` may leave out. ``unknown``: names of wrappers without a state.
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
    """Set an environment that has been reset to a state of :func:`get_state`."""
    if state["np_random"] is not None:
        env.unwrapped._np_random = state["np_random"]
    for layer, value in zip(layers_of(env), state["layers"], strict=True):
        if _has(layer, "set_state"):
            layer.set_state(value)
        elif isinstance(layer, TimeLimit):
            layer._elapsed_steps = value


def layers_of(env: Any) -> list[Any]:
    """Return the wrappers of an environment, single or vector, from the outermost to the environment itself."""
    found = [env]
    while isinstance(found[-1], Wrapper | VectorWrapper):
        found.append(found[-1].env)
    return found


def _has(layer: Any, method: str) -> bool:
    """Tell whether the class of a layer has a method, without the forwarding of wrappers."""
    return hasattr(type(layer), method)
