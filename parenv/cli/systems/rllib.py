"""RLlib's env runners on the same environment, where RLlib is installed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import tempfile
import time
from collections.abc import Callable
from typing import Any

from parenv.cli.subjects import Opened

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


def open_runners(make: Callable[[], Any], num_envs: int, num_workers: int, rollout_length: int) -> Opened:
    """Env runners that act with PPO's default module, two hidden layers of 64, and send episodes to this process.

    Args:
        make: makes an environment.
        num_envs: in all.
        num_workers: runners.
        rollout_length: env steps of each environment in a sample.
    """
    ray, tune = importlib.import_module("ray"), importlib.import_module("ray.tune")
    ppo = importlib.import_module("ray.rllib.algorithms.ppo")
    sample = importlib.import_module("ray.rllib.execution.rollout_ops").synchronous_parallel_sample
    module = importlib.import_module("ray.rllib.core.rl_module.default_model_config")
    storage: Any = importlib.import_module("ray.tune.trainable.trainable")
    storage.DEFAULT_STORAGE_PATH = tempfile.gettempdir()  # Otherwise it leaves a directory in the user's home.
    each = envs_of_a_runner(num_envs, num_workers)
    stepped = each * num_workers
    with contextlib.ExitStack() as stack:
        ray.init(num_cpus=num_workers + 1, include_dashboard=False, log_to_driver=False)
        stack.callback(ray.shutdown)
        tune.register_env(NAME, lambda config: make())
        algorithm = (
            ppo.PPOConfig()
            .environment(NAME)
            .env_runners(
                num_env_runners=num_workers, num_envs_per_env_runner=each, rollout_fragment_length=rollout_length
            )
            .training(train_batch_size_per_learner=stepped * rollout_length, minibatch_size=stepped)
            .rl_module(model_config=module.DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
            .build_algo()
        )
        stack.callback(algorithm.stop)

        def rate(seconds: float) -> float:
            steps, began = 0, time.perf_counter()
            while True:
                episodes = sample(worker_set=algorithm.env_runner_group, concat=True, _uses_new_env_runners=True)
                if not episodes:
                    raise RuntimeError("no env runner sent anything")
                steps += sum(len(episode) for episode in episodes)
                elapsed = time.perf_counter() - began
                if elapsed >= seconds:
                    return steps / elapsed

        return Opened(rate, stack.pop_all().close)
