"""Running statistics of normalising wrappers, which belong to the policy that learned with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from parenv.envs.state import layers_of
from parenv.memory.trees import deep_copy

_OF_STATISTICS = ("mean", "var", "count")
_SUMS = ("discounted_reward",)
"""Sums of wrappers from which the next statistics follow."""

Statistics = list[list[list[Any]]]
"""For each environment, from the outermost wrapper: the name of an attribute, and its values."""


def get_statistics(envs: Sequence[Any]) -> Statistics:
    """Return the statistics of all wrappers as plain data: of Gymnasium's, and of wrappers with the same attributes."""
    return [[[name, _values(name, held)] for _, name, held in _held_by(env)] for env in envs]


def set_statistics(envs: Sequence[Any], saved: Statistics, updating: bool = True) -> None:
    """Replace the statistics of environments. An environment with other attributes stays unchanged.

    Args:
        envs: As many environments as there are statistics.
        saved: Result of :func:`get_statistics`.
        updating: Whether wrappers that can stop their updates continue them.
    """
    for env, of_env in zip(envs, saved, strict=True):
        held = list(_held_by(env))
        if [name for _, name, _ in held] != [name for name, _ in of_env]:
            continue
        for (layer, name, mine), (_, values) in zip(held, of_env, strict=True):
            if name in _SUMS:
                setattr(layer, name, np.array(values))
            else:
                for part, value in zip(_OF_STATISTICS, values, strict=True):
                    setattr(mine, part, deep_copy(value))
            if hasattr(layer, "update_running_mean"):
                layer.update_running_mean = updating


def _held_by(env: Any) -> Iterator[tuple[Any, str, Any]]:
    for layer in layers_of(env)[:-1]:
        for name, held in vars(layer).items():
            if name in _SUMS or _is_running(held):
                yield layer, name, held


def _is_running(held: Any) -> bool:
    # Arrays have methods of these names.
    return all(hasattr(held, part) and not callable(getattr(held, part)) for part in _OF_STATISTICS)


def _values(name: str, held: Any) -> Any:
    return np.array(held) if name in _SUMS else [deep_copy(getattr(held, part)) for part in _OF_STATISTICS]
