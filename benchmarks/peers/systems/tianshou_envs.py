"""Vector envs of Tianshou, which do not reset sub-environments by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import tianshou.env
from environments import factory

from systems.loops import Close, Measure, first_observation, rate, sampled_actions, step_rate


class ResettingEnvs:
    """Tianshou's vector envs, with the resets that Tianshou leaves to its user."""

    def __init__(self, envs: Any) -> None:
        self.envs, self.close = envs, envs.close

    def step(self, actions: Any) -> None:
        """Step all sub-environments, and reset those whose episode has ended."""
        _, _, terminated, truncated, _ = self.envs.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        if ended.size:
            self.envs.reset(ended)


def stepping(case: str, num_envs: int, kind: str) -> tuple[Measure, Close]:
    """Measure ``step`` of a ``"DummyVectorEnv"``, ``"SubprocVectorEnv"`` or ``"ShmemVectorEnv"``."""
    envs = ResettingEnvs(getattr(tianshou.env, kind)([factory(case)] * num_envs))
    _reset(envs.envs)
    return step_rate(envs.step, sampled_actions(case, num_envs)), envs.close


def ready(case: str, num_envs: int, batch_size: int) -> tuple[Measure, Close]:
    """Measure steps of at least ``batch_size`` ready sub-environments, whose episodes must not end."""
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
    """Measure the start of a ``SubprocVectorEnv`` with a start method of ``multiprocessing``."""
    return first_observation(lambda: tianshou.env.SubprocVectorEnv([factory(case)] * num_envs, context=start), _reset)


def _reset(envs: Any) -> Any:
    envs.seed(0)
    return envs.reset()
