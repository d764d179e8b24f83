"""Gymnasium's own vector envs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym

NAME, PACKAGE = "", "gymnasium"
KINDS = {"SyncVectorEnv": True, "AsyncVectorEnv": False}
"""Whether each steps in this process; otherwise in one process for each sub-environment."""


def make(kind: str, factories: Sequence[Callable[[], Any]], start_method: str | None = None) -> Any:
    """A vector env of this kind; the start method is that of multiprocessing, where there are processes."""
    if kind == "SyncVectorEnv":
        return gym.vector.SyncVectorEnv(factories)
    envs: Any = gym.vector.AsyncVectorEnv(factories, context=start_method)
    envs.close = partial(envs.close, terminate=True)  # Otherwise it would wait for a sub-environment that hangs.
    return envs
