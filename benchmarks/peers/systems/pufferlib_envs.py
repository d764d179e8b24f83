"""Vector envs of PufferLib with Gymnasium environments."""

from __future__ import annotations

from functools import partial
from typing import Any

import pufferlib.vector
from environments import factory
from pufferlib.emulation import GymnasiumPufferEnv

from systems.loops import Close, Measure, first_observation, sampled_actions, step_rate


def make_env(case: str, buf: Any = None, seed: int = 0) -> GymnasiumPufferEnv:
    """Return an environment that writes its observations into PufferLib's buffer."""
    return GymnasiumPufferEnv(env_creator=factory(case), buf=buf, seed=seed)


def stepping(case: str, num_envs: int, num_workers: int) -> tuple[Measure, Close]:
    """Measure ``step``. With 0 workers, this process steps all sub-environments.

    ``overwork`` is needed because PufferLib refuses more workers than physical cores.
    """
    options = {"backend": "Multiprocessing", "num_workers": num_workers, "overwork": True}
    envs = pufferlib.vector.make(
        partial(make_env, case), num_envs=num_envs, **(options if num_workers else {"backend": "Serial"})
    )
    envs.reset(seed=0)
    return step_rate(envs.step, sampled_actions(case, num_envs)), envs.close


def startup(case: str, num_envs: int) -> tuple[Any, Close]:
    """Measure the start of a vector env with a worker for each environment."""
    return first_observation(
        lambda: pufferlib.vector.make(
            partial(make_env, case), num_envs=num_envs, backend="Multiprocessing", num_workers=num_envs, overwork=True
        ),
        lambda envs: envs.reset(seed=0),
    )
