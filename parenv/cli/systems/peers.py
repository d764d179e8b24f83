"""Vector envs of other libraries, where they are installed, behind ``step(actions)`` with automatic resets."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

Factories = Sequence[Callable[[], Any]]


class Peer(NamedTuple):
    """A vector env of another library.

    Args:
        name: as the report calls it.
        in_process: whether it steps in this process; otherwise in one process for each sub-environment.
        make: makes it.
    """

    name: str
    in_process: bool
    make: Callable[[Factories], Any]


def vector_peers(start_method: str | None) -> Iterator[Peer]:
    """What is installed.

    Args:
        start_method: of multiprocessing, where one can be chosen.
    """
    if _is_installed("stable_baselines3"):
        yield Peer("SB3 DummyVecEnv", True, partial(_sb3, "DummyVecEnv"))
        yield Peer("SB3 SubprocVecEnv", False, partial(_sb3, "SubprocVecEnv", start_method=start_method))
    if _is_installed("tianshou"):
        yield Peer("Tianshou DummyVectorEnv", True, partial(_Tianshou, "DummyVectorEnv"))
        yield Peer("Tianshou ShmemVectorEnv", False, partial(_Tianshou, "ShmemVectorEnv"))
    if _is_installed("torchrl"):
        yield Peer("TorchRL SerialEnv", True, partial(_TorchRL, "SerialEnv"))
        yield Peer("TorchRL ParallelEnv", False, partial(_TorchRL, "ParallelEnv", mp_start_method=start_method))


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _sb3(kind: str, factories: Factories, **more: Any) -> Any:
    from stable_baselines3.common import vec_env

    return getattr(vec_env, kind)(list(factories), **more)


class _Tianshou:
    """Its user resets what has ended."""

    def __init__(self, kind: str, factories: Factories) -> None:
        self._envs = getattr(importlib.import_module("tianshou.env"), kind)(list(factories))
        self.num_envs, self.reset, self.close = len(factories), self._envs.reset, self._envs.close

    def step(self, actions: Any) -> None:
        _, _, terminated, truncated, _ = self._envs.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        if ended.size:
            self._envs.reset(ended)


class _TorchRL:
    """Stepped as its collectors step."""

    def __init__(self, kind: str, factories: Factories, **more: Any) -> None:
        envs = importlib.import_module("torchrl.envs")

        def wrapped(make: Callable[[], Any]) -> Any:
            return envs.GymWrapper(make(), categorical_action_encoding=True)

        makers = [partial(wrapped, make) for make in factories]
        self._envs = getattr(envs, kind)(len(factories), makers, **more)
        self.num_envs, self.close = len(factories), self._envs.close

    def reset(self) -> None:
        self._data = self._envs.reset()

    def step(self, actions: Any) -> None:
        import torch

        _, self._data = self._envs.step_and_maybe_reset(self._data.set("action", torch.as_tensor(actions)))
