"""Vector envs of Stable-Baselines3."""

from __future__ import annotations

from typing import Any

from environments import factory
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from systems.loops import Close, Measure, first_observation, sampled_actions, step_rate


def stepping(case: str, num_envs: int, kind: str) -> tuple[Measure, Close]:
    """Measure ``step`` of a ``"DummyVecEnv"`` or a ``"SubprocVecEnv"``.

    Workers are forked. With the default start method, each of up to 256 workers would import torch.
    """
    factories = [factory(case)] * num_envs
    envs = DummyVecEnv(factories) if kind == "DummyVecEnv" else SubprocVecEnv(factories, "fork")
    _reset(envs)
    return step_rate(envs.step, sampled_actions(case, num_envs)), envs.close


def startup(case: str, num_envs: int, start: str) -> tuple[Any, Close]:
    """Measure the start of a ``SubprocVecEnv`` with a start method of ``multiprocessing``."""
    return first_observation(lambda: SubprocVecEnv([factory(case)] * num_envs, start), _reset)


def _reset(envs: Any) -> Any:
    envs.seed(0)
    return envs.reset()
