"""Gymnasium's own vector envs."""

from __future__ import annotations

import gymnasium as gym
from environments import factory

from systems.loops import Close, Measure, sampled_actions, step_rate


def stepping(case: str, num_envs: int, kind: str) -> tuple[Measure, Close]:
    """``kind``: ``"SyncVectorEnv"`` or ``"AsyncVectorEnv"``."""
    actions, factories = sampled_actions(case, num_envs), [factory(case)] * num_envs
    envs = gym.vector.SyncVectorEnv(factories) if kind == "SyncVectorEnv" else gym.vector.AsyncVectorEnv(factories)
    envs.reset(seed=0)
    return step_rate(envs.step, actions), envs.close
