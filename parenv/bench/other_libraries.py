"""Vector envs and env runners of other libraries, for comparison.

This file imports nothing of parenv: ``benchmarks/peers`` uses it in virtual environments that have one library each.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

Factories = Sequence[Callable[[], Any]]
Make = Callable[[Factories], Any]

KINDS = {
    ("gymnasium", "SyncVectorEnv"): True,
    ("gymnasium", "AsyncVectorEnv"): False,
    ("stable_baselines3", "DummyVecEnv"): True,
    ("stable_baselines3", "SubprocVecEnv"): False,
    ("tianshou", "DummyVectorEnv"): True,
    ("tianshou", "ShmemVectorEnv"): False,
    ("torchrl", "SerialEnv"): True,
    ("torchrl", "ParallelEnv"): False,
}
"""Whether each kind steps in the calling process. The other kinds have one process per sub-environment."""
_TITLES = {"gymnasium": "", "stable_baselines3": "SB3 ", "tianshou": "Tianshou ", "torchrl": "TorchRL "}
_RLLIB_NEEDS = ("ray", "tree", "lz4", "tensorboardX")
"""Packages of the extra ``ray[rllib]``. The source of RLlib is installed without them."""
RLLIB_ENV = "parenv-bench"


def is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def vector_peers(start_method: str | None) -> Iterator[tuple[str, bool, Make]]:
    """Yield the vector envs of installed libraries: name, whether it steps in this process, and constructor.

    Args:
        start_method: Start method of multiprocessing, for libraries in which it can be chosen.
    """
    for (package, kind), in_process in KINDS.items():
        if is_installed(package):
            yield f"{_TITLES[package]}{kind}", in_process, partial(MAKERS[package], kind, start_method=start_method)


def make_gymnasium(kind: str, factories: Factories, start_method: str | None = None) -> Any:
    """Make one of Gymnasium's vector envs."""
    import gymnasium as gym

    if kind == "SyncVectorEnv":
        return gym.vector.SyncVectorEnv(factories)
    envs: Any = gym.vector.AsyncVectorEnv(factories, context=start_method)
    envs.close = partial(envs.close, terminate=True)  # A plain close() waits for a sub-environment that hangs.
    return envs


def make_sb3(kind: str, factories: Factories, start_method: str | None = None) -> Any:
    """Make one of Stable-Baselines3's vector envs."""
    from stable_baselines3.common import vec_env

    more = {"start_method": start_method} if kind == "SubprocVecEnv" else {}
    return getattr(vec_env, kind)(list(factories), **more)


class TianshouEnvs:
    """Tianshou's vector envs, with the resets that Tianshou leaves to its user."""

    def __init__(self, envs: Any, num_envs: int) -> None:
        self.envs, self.num_envs = envs, num_envs
        self.reset, self.close = envs.reset, envs.close

    def step(self, actions: Any) -> None:
        """Step all sub-environments, and reset those whose episode has ended."""
        _, _, terminated, truncated, _ = self.envs.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        if ended.size:
            self.envs.reset(ended)


def make_tianshou(kind: str, factories: Factories, start_method: str | None = None) -> TianshouEnvs:
    """Make one of Tianshou's vector envs. Not all of them have a choice of start method."""
    envs = getattr(importlib.import_module("tianshou.env"), kind)
    return TianshouEnvs(envs(list(factories)), len(factories))


class TorchRLEnvs:
    """TorchRL's batched envs, stepped as TorchRL's collectors step them."""

    def __init__(self, envs: Any, num_envs: int) -> None:
        self.envs, self.num_envs, self.close = envs, num_envs, envs.close

    def reset(self) -> None:
        """Begin an episode in each sub-environment."""
        self._data = self.envs.reset()

    def step(self, actions: Any) -> None:
        """Step all sub-environments, and reset those whose episode has ended."""
        import torch

        _, self._data = self.envs.step_and_maybe_reset(self._data.set("action", torch.as_tensor(actions)))


def torchrl_env(factory: Callable[[], Any]) -> Any:
    """Make one environment for TorchRL. Its actions are integers instead of one-hot."""
    return importlib.import_module("torchrl.envs").GymWrapper(factory(), categorical_action_encoding=True)


def make_torchrl(kind: str, factories: Factories, start_method: str | None = None) -> TorchRLEnvs:
    """Make one of TorchRL's batched envs."""
    # TorchRL compares factories by identity to find sub-environments of the same kind.
    makers = {id(factory): partial(torchrl_env, factory) for factory in factories}
    more = {"mp_start_method": start_method} if kind == "ParallelEnv" else {}
    envs, each = getattr(importlib.import_module("torchrl.envs"), kind), [makers[id(factory)] for factory in factories]
    # TorchRL keeps the frames of its callers, with all their variables. A new thread has no frames of ours.
    with ThreadPoolExecutor(1) as thread:
        return TorchRLEnvs(thread.submit(envs, len(factories), each, **more).result(), len(factories))


MAKERS: dict[str, Callable[..., Any]] = {
    "gymnasium": make_gymnasium,
    "stable_baselines3": make_sb3,
    "tianshou": make_tianshou,
    "torchrl": make_torchrl,
}


def has_rllib() -> bool:
    """Return whether RLlib can be imported."""
    return all(map(is_installed, _RLLIB_NEEDS))


def envs_of_a_runner(num_envs: int, num_workers: int) -> int:
    """Return the number of environments of each env runner. The remainder is neither stepped nor counted.

    >>> envs_of_a_runner(7, 2)
    3
    """
    return num_envs // num_workers


def rllib_configuration(env: str, num_envs: int, num_workers: int, rollout_length: int, **model: Any) -> Any:
    """Return RLlib's configuration of PPO with two hidden layers of 64.

    Args:
        env: Env id of Gymnasium, or a name that is registered with Ray Tune.
        num_envs: Number of environments in all runners together.
        num_workers: Number of env runners.
        rollout_length: Env steps per environment in a sample.
        **model: Further settings of the default module.
    """
    storage: Any = importlib.import_module("ray.tune.trainable.trainable")
    storage.DEFAULT_STORAGE_PATH = tempfile.gettempdir()  # RLlib's default leaves a directory in the user's home.
    module = importlib.import_module("ray.rllib.core.rl_module.default_model_config")
    each = envs_of_a_runner(num_envs, num_workers)
    return (
        importlib.import_module("ray.rllib.algorithms.ppo")
        .PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=num_workers, num_envs_per_env_runner=each, rollout_fragment_length=rollout_length)
        .training(train_batch_size_per_learner=each * num_workers * rollout_length)
        .rl_module(model_config=module.DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", **model))
    )


def rllib_collected(algorithm: Any) -> int:
    """Sample once from all env runners, and return the number of env steps that arrived."""
    sample = importlib.import_module("ray.rllib.execution.rollout_ops").synchronous_parallel_sample
    episodes = sample(worker_set=algorithm.env_runner_group, concat=True, _uses_new_env_runners=True)
    if not episodes:
        raise RuntimeError("no env runner has returned a sample")
    return sum(len(episode) for episode in episodes)


def open_rllib(
    make: Callable[[], Any], num_envs: int, num_workers: int, rollout_length: int
) -> tuple[Callable[[float], float], Callable[[], object]]:
    """Start Ray, and env runners that act with PPO's default module.

    Args:
        make: Function that makes an environment.
        num_envs: Number of environments in all runners together.
        num_workers: Number of env runners.
        rollout_length: Env steps per environment in a sample.

    Returns:
        Function that measures env steps per second for some seconds, and function that ends Ray.
    """
    ray, tune = importlib.import_module("ray"), importlib.import_module("ray.tune")
    stepped = envs_of_a_runner(num_envs, num_workers) * num_workers
    with contextlib.ExitStack() as stack:
        ray.init(num_cpus=num_workers + 1, include_dashboard=False, log_to_driver=False)
        stack.callback(ray.shutdown)
        tune.register_env(RLLIB_ENV, lambda config: make())
        config = rllib_configuration(RLLIB_ENV, num_envs, num_workers, rollout_length)
        algorithm = config.training(minibatch_size=stepped).build_algo()
        stack.callback(algorithm.stop)

        def rate(seconds: float) -> float:
            steps, began = 0, time.perf_counter()
            while True:
                steps += rllib_collected(algorithm)
                elapsed = time.perf_counter() - began
                if elapsed >= seconds:
                    return steps / elapsed

        return rate, stack.pop_all().close
