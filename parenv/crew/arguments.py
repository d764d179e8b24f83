"""Checks of arguments that pool and vector env have in common, and which worker gets how many sub-environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenv.errors import ConfigurationError
from parenv.options import Parallelism
from parenv.process.cores import recommended_num_workers


def split(num_envs: int | None, num_workers: int | None, parallelism: Parallelism = "experience") -> tuple[int, ...]:
    """Sub-environments of each worker, as even as can be.

    Raises:
        ConfigurationError: fewer sub-environments than workers.

    >>> split(7, 3), split(None, 2), split(5, 0)
    ((3, 2, 2), (1, 1), (5,))
    """
    if num_workers is None:
        num_workers = min(recommended_num_workers(parallelism), num_envs or 1 << 30)
    num_workers = max(1, num_workers)
    num_envs = num_workers if num_envs is None else num_envs
    if num_envs < num_workers:
        raise ConfigurationError(
            f"num_envs={num_envs} is fewer than num_workers={num_workers}, so some workers would have nothing to step: "
            f"use num_workers={num_envs} or num_envs={num_workers}"
        )
    return tuple(num_envs // num_workers + (worker < num_envs % num_workers) for worker in range(num_workers))


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not one of a few words."""
    if value not in allowed:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def at_least(name: str, value: Any, least: int) -> None:
    """Refuse a value that is no integer, or too small a one."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name} must be an integer of at least {least}, got {value!r}")
