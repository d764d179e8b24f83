"""parenv, asked the same as the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from environments import factory

from parenv import ParallelVectorEnv
from systems.loops import Close, Measure, sampled_actions, step_rate


def stepping(case: str, num_envs: int, num_workers: int) -> tuple[Measure, Close]:
    """``step`` after ``step``."""
    envs = ParallelVectorEnv([factory(case)] * num_envs, num_workers=num_workers)
    envs.reset(seed=0)
    return step_rate(envs.step, sampled_actions(case, num_envs)), envs.close


def ready(case: str, num_envs: int, num_workers: int, batch_size: int) -> tuple[Measure, Close]:
    """``send`` and ``recv`` of whoever is ready."""
    envs = ParallelVectorEnv([factory(case)] * num_envs, num_workers=num_workers, batch_size=batch_size)
    envs.reset(seed=0)
    for part in np.split(np.arange(num_envs), num_envs // batch_size):
        envs.send(sampled_actions(case, num_envs)[0][part], part)
    step: Callable[[Any], object] = lambda actions: envs.send(actions, envs.recv()[4]["env_id"])  # noqa: E731
    return step_rate(step, sampled_actions(case, batch_size)), envs.close
