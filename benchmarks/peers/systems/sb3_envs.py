"""Vector envs of Stable-Baselines3."""

from __future__ import annotations

from typing import Any

from bench.other_libraries import make_sb3 as make
from environments import factory

from systems.loops import Close, Measure, first_observation, sampled_actions, step_rate


def stepping(case: str, num_envs: int, kind: str) -> tuple[Measure, Close]:
    """Measure ``step`` of a ``"DummyVecEnv"`` or a ``"SubprocVecEnv"``.

    Workers are forked. With the default start method, each of up to 256 workers would import torch.
    """
    envs = make(kind, [factory(case)] * num_envs, "fork")
    _reset(envs)
    return step_rate(envs.step, sampled_actions(case, num_envs)), envs.close


def startup(case: str, num_envs: int, start: str) -> tuple[Any, Close]:
    """Measure the start of a ``SubprocVecEnv`` with a start method of ``multiprocessing``."""
    return first_observation(lambda: make("SubprocVecEnv", [factory(case)] * num_envs, start), _reset)


def _reset(envs: Any) -> Any:
    envs.seed(0)
    return envs.reset()
