"""Tianshou's vector envs, whose user resets what has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

NAME, PACKAGE = "Tianshou", "tianshou"
KINDS = {"DummyVectorEnv": True, "ShmemVectorEnv": False}


class TianshouEnvs:
    """Stepped with the resets that they need."""

    def __init__(self, envs: Any, num_envs: int) -> None:
        self.envs, self.num_envs = envs, num_envs
        self.reset, self.close = envs.reset, envs.close

    def step(self, actions: Any) -> None:
        """Step all, and reset those that have ended."""
        _, _, terminated, truncated, _ = self.envs.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        if ended.size:
            self.envs.reset(ended)


def make(kind: str, factories: Sequence[Callable[[], Any]], start_method: str | None = None) -> TianshouEnvs:
    """Vector envs of this kind; their start method cannot be chosen for all kinds."""
    return TianshouEnvs(getattr(import_module("tianshou.env"), kind)(list(factories)), len(factories))
