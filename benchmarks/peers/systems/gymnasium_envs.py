"""Vector envs of Gymnasium."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from environments import factory

from systems.loops import Close, Measure, first_observation, sampled_actions, step_rate


def make(kind: str, factories: list[Callable[[], Any]], start_method: str | None = None) -> Any:
    """Make a ``"SyncVectorEnv"`` or an ``"AsyncVectorEnv"``."""
    if kind == "SyncVectorEnv":
        return gym.vector.SyncVectorEnv(factories)
    envs: Any = gym.vector.AsyncVectorEnv(factories, context=start_method)
    envs.close = partial(envs.close, terminate=True)  # A plain close() waits for a sub-environment that hangs.
    return envs


def stepping(case: str, num_envs: int, kind: str) -> tuple[Measure, Close]:
    """Measure ``step`` of a ``"SyncVectorEnv"`` or an ``"AsyncVectorEnv"``."""
    envs = make(kind, [factory(case)] * num_envs)
    envs.reset(seed=0)
    return step_rate(envs.step, sampled_actions(case, num_envs)), envs.close


def startup(case: str, num_envs: int, start: str) -> tuple[Any, Close]:
    """Measure the start of an ``AsyncVectorEnv`` with a start method of ``multiprocessing``."""
    return first_observation(
        lambda: make("AsyncVectorEnv", [factory(case)] * num_envs, start), lambda envs: envs.reset(seed=0)
    )
