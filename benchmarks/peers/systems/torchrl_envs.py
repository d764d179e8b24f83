"""TorchRL's batched envs, stepped as its collectors step them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from environments import factory
from torchrl.envs import AsyncEnvPool, EnvBase, GymWrapper, ParallelEnv, SerialEnv

from systems.loops import Close, Measure, first_observation, rate, sampled_actions, step_rate


def make_env(case: str) -> EnvBase:
    """One environment, with its actions as they are and not one-hot."""
    return GymWrapper(factory(case)(), categorical_action_encoding=True)


def stepping(case: str, num_envs: int, kind: str) -> tuple[Measure, Close]:
    """``kind``: ``"SerialEnv"`` or ``"ParallelEnv"``; forked, for with its default 256 processes import torch."""
    make = partial(make_env, case)
    envs = SerialEnv(num_envs, make) if kind == "SerialEnv" else ParallelEnv(num_envs, make, mp_start_method="fork")
    data = _reset(envs)

    def step(actions: Any) -> None:
        nonlocal data
        _, data = envs.step_and_maybe_reset(data.set("action", torch.from_numpy(actions)))

    return step_rate(step, sampled_actions(case, num_envs)), envs.close


def ready(case: str, num_envs: int, batch_size: int) -> tuple[Measure, Close]:
    """Whoever is ready, ``batch_size`` at least; with threads, its default, and here faster than its processes."""
    envs = AsyncEnvPool([partial(make_env, case)] * num_envs, backend="threading")
    actions, data = sampled_actions(case, num_envs), envs.reset()

    def advance(count: int) -> int:
        nonlocal data
        data.set("action", torch.from_numpy(actions[count % 64][: len(data)]))
        envs.async_step_and_maybe_reset_send(data)
        _, data = envs.async_step_and_maybe_reset_recv(min_get=batch_size)
        return len(data)

    return rate(advance), envs.close


def startup(case: str, num_envs: int, start: str) -> tuple[Any, Close]:
    """``start``: the start method of multiprocessing."""
    return first_observation(lambda: ParallelEnv(num_envs, partial(make_env, case), mp_start_method=start), _reset)


def _reset(envs: Any) -> Any:
    envs.set_seed(0)
    return envs.reset()
