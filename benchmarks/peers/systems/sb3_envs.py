"""Stable-Baselines3's vector envs."""

from __future__ import annotations

from typing import Any

from bench.other_libraries import make_sb3 as make
from environments import factory

from systems.loops import Close, Measure, first_observation, sampled_actions, step_rate


def stepping(case: str, num_envs: int, kind: str) -> tuple[Measure, Close]:
    """``kind``: ``"DummyVecEnv"`` or ``"SubprocVecEnv"``; forked, for with its default 256 processes import torch."""
    envs = make(kind, [factory(case)] * num_envs, "fork")
    _reset(envs)
    return step_rate(envs.step, sampled_actions(case, num_envs)), envs.close


def startup(case: str, num_envs: int, start: str) -> tuple[Any, Close]:
    """``start``: the start method of multiprocessing."""
    return first_observation(lambda: make("SubprocVecEnv", [factory(case)] * num_envs, start), _reset)


def _reset(envs: Any) -> Any:
    envs.seed(0)
    return envs.reset()
