"""Stable-Baselines3's vector envs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

NAME, PACKAGE = "SB3", "stable_baselines3"
KINDS = {"DummyVecEnv": True, "SubprocVecEnv": False}


def make(kind: str, factories: Sequence[Callable[[], Any]], start_method: str | None = None) -> Any:
    """A vector env of this kind."""
    from stable_baselines3.common import vec_env

    more = {} if KINDS[kind] else {"start_method": start_method}
    return getattr(vec_env, kind)(list(factories), **more)
