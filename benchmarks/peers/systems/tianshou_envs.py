"""Tianshou's vector envs, whose user resets what has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tianshou.env
from environments import factory

from systems.loops import Close, Measure, first_observation, rate, sampled_actions, step_rate


def stepping(case: str, num_envs: int, kind: str) -> tuple[Measure, Close]:
    """``kind``: ``"DummyVectorEnv"``, ``"SubprocVectorEnv"`` or ``"ShmemVectorEnv"``."""
    envs = getattr(tianshou.env, kind)([factory(case)] * num_envs)
    _reset(envs)

    def step(actions: Any) -> None:
        _, _, terminated, truncated, _ = envs.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        if ended.size:
            envs.reset(ended)

    return step_rate(step, sampled_actions(case, num_envs)), envs.close


def ready(case: str, num_envs: int, batch_size: int) -> tuple[Measure, Close]:
    """Whoever is ready, ``batch_size`` at least; of environments that do not end."""
    envs = tianshou.env.SubprocVectorEnv([factory(case)] * num_envs, wait_num=batch_size)
    _reset(envs)
    actions, env_ids = sampled_actions(case, num_envs), list(range(num_envs))

    def advance(count: int) -> int:
        nonlocal env_ids
        *_, infos = envs.step(actions[count % 64][: len(env_ids)], env_ids)
        env_ids = [info["env_id"] for info in infos]
        return len(env_ids)

    return rate(advance), envs.close


def startup(case: str, num_envs: int, start: str) -> tuple[Any, Close]:
    """``start``: the start method of multiprocessing."""
    make: Callable[[], Any] = lambda: tianshou.env.SubprocVectorEnv([factory(case)] * num_envs, context=start)  # noqa: E731
    return first_observation(make, _reset)


def _reset(envs: Any) -> Any:
    envs.seed(0)
    return envs.reset()
