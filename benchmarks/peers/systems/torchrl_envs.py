"""Batched environments of TorchRL, stepped as TorchRL's collectors step them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torchrl.envs
from environments import factory

from systems.loops import Close, Measure, first_observation, rate, sampled_actions, step_rate


class SteppedEnvs:
    """TorchRL's batched envs, stepped as TorchRL's collectors step them."""

    def __init__(self, envs: Any) -> None:
        self.envs, self.close = envs, envs.close

    def reset(self) -> None:
        """Begin an episode in each sub-environment."""
        self._data = self.envs.reset()

    def step(self, actions: Any) -> None:
        """Step all sub-environments, and reset those whose episode has ended."""
        _, self._data = self.envs.step_and_maybe_reset(self._data.set("action", torch.as_tensor(actions)))


def torchrl_env(make: Callable[[], Any]) -> Any:
    """Make one environment for TorchRL. Its actions are integers instead of one-hot."""
    return torchrl.envs.GymWrapper(make(), categorical_action_encoding=True)


def make(kind: str, factory: Callable[[], Any], num_envs: int, start_method: str) -> SteppedEnvs:
    """Make a ``"SerialEnv"`` or a ``"ParallelEnv"``."""
    # TorchRL compares factories by identity to find sub-environments of the same kind.
    more = {"mp_start_method": start_method} if kind == "ParallelEnv" else {}
    return SteppedEnvs(getattr(torchrl.envs, kind)(num_envs, [partial(torchrl_env, factory)] * num_envs, **more))


def stepping(case: str, num_envs: int, kind: str) -> tuple[Measure, Close]:
    """Measure steps of a ``"SerialEnv"`` or a ``"ParallelEnv"``.

    Workers are forked. With the default start method, each of up to 256 workers would import torch.
    """
    envs = make(kind, factory(case), num_envs, "fork")
    envs.envs.set_seed(0)
    envs.reset()
    return step_rate(envs.step, sampled_actions(case, num_envs)), envs.close


def ready(case: str, num_envs: int, batch_size: int) -> tuple[Measure, Close]:
    """Measure steps of at least ``batch_size`` ready sub-environments of an ``AsyncEnvPool``.

    Threads are its default, and are faster than its processes here.
    """
    envs = torchrl.envs.AsyncEnvPool([partial(torchrl_env, factory(case))] * num_envs, backend="threading")
    actions, data = sampled_actions(case, num_envs), envs.reset()

    def advance(count: int) -> int:
        nonlocal data
        data.set("action", torch.from_numpy(actions[count % 64][: len(data)]))
        envs.async_step_and_maybe_reset_send(data)
        _, data = envs.async_step_and_maybe_reset_recv(min_get=batch_size)
        return len(data)

    return rate(advance), envs.close


def startup(case: str, num_envs: int, start: str) -> tuple[Any, Close]:
    """Measure the start of a ``ParallelEnv`` with a start method of ``multiprocessing``."""

    def reset(envs: Any) -> None:
        envs.envs.set_seed(0)
        envs.reset()

    return first_observation(lambda: make("ParallelEnv", factory(case), num_envs, start), reset)
