"""PufferLib's vector envs around environments in Python."""

from __future__ import annotations

from functools import partial
from typing import Any

import pufferlib.vector
from environments import factory
from pufferlib.emulation import GymnasiumPufferEnv

from systems.loops import Close, Measure, first_observation, sampled_actions, step_rate


def make_env(case: str, buf: Any = None, seed: int = 0) -> GymnasiumPufferEnv:
    """One environment, with its observations in PufferLib's buffer."""
    return GymnasiumPufferEnv(env_creator=factory(case), buf=buf, seed=seed)


def stepping(case: str, num_envs: int, num_workers: int) -> tuple[Measure, Close]:
    """In this process with 0 workers; on a machine with two threads a core, two workers are one too many for it."""
    options = {"backend": "Multiprocessing", "num_workers": num_workers, "overwork": True}
    envs = pufferlib.vector.make(
        partial(make_env, case), num_envs=num_envs, **(options if num_workers else {"backend": "Serial"})
    )
    envs.reset(seed=0)
    return step_rate(envs.step, sampled_actions(case, num_envs)), envs.close


def startup(case: str, num_envs: int) -> tuple[Any, Close]:
    """A worker per environment."""
    return first_observation(
        lambda: pufferlib.vector.make(
            partial(make_env, case), num_envs=num_envs, backend="Multiprocessing", num_workers=num_envs, overwork=True
        ),
        lambda envs: envs.reset(seed=0),
    )
