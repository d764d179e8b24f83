"""RLlib's env runners, where RLlib is installed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import tempfile
import time
from collections.abc import Callable
from typing import Any

NAME = "parenv-bench"
_NEEDED = ("ray", "tree", "lz4", "tensorboardX")
"""Packages of the extra ``ray[rllib]``; its source is there without them."""


def is_installed() -> bool:
    """Whether RLlib can be imported."""
    return all(importlib.util.find_spec(package) is not None for package in _NEEDED)


def envs_of_a_runner(num_envs: int, num_workers: int) -> int:
    """All runners have equally many; what is left over is not stepped, and not counted.

    >>> envs_of_a_runner(7, 2)
    3
    """
    return num_envs // num_workers


def configuration(env: str, num_envs: int, num_workers: int, rollout_length: int, **model: Any) -> Any:
    """PPO with two hidden layers of 64.

    Args:
        env: an env id of Gymnasium, or a name that is registered with Ray Tune.
        num_envs: in all.
        num_workers: env runners.
        rollout_length: env steps of each environment in a sample.
        **model: what else the default module is to be.
    """
    storage: Any = importlib.import_module("ray.tune.trainable.trainable")
    storage.DEFAULT_STORAGE_PATH = tempfile.gettempdir()  # Otherwise it leaves a directory in the user's home.
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


def collected(algorithm: Any) -> int:
    """Env steps of episodes, or pieces of them, that all runners send to this process."""
    sample = importlib.import_module("ray.rllib.execution.rollout_ops").synchronous_parallel_sample
    episodes = sample(worker_set=algorithm.env_runner_group, concat=True, _uses_new_env_runners=True)
    if not episodes:
        raise RuntimeError("no env runner sent anything")
    return sum(len(episode) for episode in episodes)


def open_runners(
    make: Callable[[], Any], num_envs: int, num_workers: int, rollout_length: int
) -> tuple[Callable[[float], float], Callable[[], object]]:
    """Start Ray, and env runners in it that act with PPO's default module.

    Args:
        make: makes an environment.
        num_envs: in all.
        num_workers: runners.
        rollout_length: env steps of each environment in a sample.

    Returns:
        What measures env steps per second for so many seconds, and what ends it all.
    """
    ray, tune = importlib.import_module("ray"), importlib.import_module("ray.tune")
    stepped = envs_of_a_runner(num_envs, num_workers) * num_workers
    with contextlib.ExitStack() as stack:
        ray.init(num_cpus=num_workers + 1, include_dashboard=False, log_to_driver=False)
        stack.callback(ray.shutdown)
        tune.register_env(NAME, lambda config: make())
        config = configuration(NAME, num_envs, num_workers, rollout_length)
        algorithm = config.training(minibatch_size=stepped).build_algo()
        stack.callback(algorithm.stop)

        def rate(seconds: float) -> float:
            steps, began = 0, time.perf_counter()
            while True:
                steps += collected(algorithm)
                elapsed = time.perf_counter() - began
                if elapsed >= seconds:
                    return steps / elapsed

        return rate, stack.pop_all().close
