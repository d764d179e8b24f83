"""PPO of RLlib: rollouts of its env runners, and training on CartPole."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
import ray.tune.trainable.trainable
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.execution.rollout_ops import synchronous_parallel_sample

from systems import rays
from systems.delivery import delivery_rate
from systems.learning import Clock, Found
from systems.loops import Close, Measure


def configuration(num_envs: int, num_workers: int, rollout_length: int, vf_share_layers: bool) -> Any:
    """Return RLlib's configuration of PPO on CartPole with two hidden layers of 64."""
    storage: Any = ray.tune.trainable.trainable
    storage.DEFAULT_STORAGE_PATH = tempfile.gettempdir()  # RLlib's default leaves a directory in the user's home.
    # The remainder of num_envs is neither stepped nor counted.
    each = num_envs // num_workers
    model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=vf_share_layers)
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=num_workers, num_envs_per_env_runner=each, rollout_fragment_length=rollout_length)
        .training(train_batch_size_per_learner=each * num_workers * rollout_length)
        .rl_module(model_config=model)
    )


def collected(algorithm: Any) -> int:
    """Sample once from all env runners, and return the number of env steps that arrived."""
    group = algorithm.env_runner_group
    episodes = synchronous_parallel_sample(worker_set=group, concat=True, _uses_new_env_runners=True)
    if not episodes:
        raise RuntimeError("no env runner has returned a sample")
    return sum(len(episode) for episode in episodes)


def rollouts(num_envs: int, num_workers: int, rollout_length: int) -> tuple[Measure, Close]:
    """Measure episodes, or parts of them, that arrive from all env runners."""
    rays.start(num_workers + 1)
    algorithm = configuration(num_envs, num_workers, rollout_length, vf_share_layers=True).build_algo()
    return delivery_rate(lambda: collected(algorithm)), lambda: _stop(algorithm)


def _stop(algorithm: Any) -> None:
    algorithm.stop()
    ray.shutdown()


def with_settings(config: Any, settings: dict[str, Any], seed: int) -> Any:
    """Return a configuration with the settings of all implementations, without RLlib's KL loss and value clipping."""
    annealed = [[0, settings["learning_rate"]], [settings["total_env_steps"], 0.0]]
    return (
        config.training(
            lr=annealed,
            gamma=settings["gamma"],
            lambda_=settings["gae_lambda"],
            num_epochs=settings["epochs"],
            minibatch_size=settings["minibatch_size"],
            clip_param=settings["clip_range"],
            entropy_coeff=settings["entropy_coef"],
            vf_loss_coeff=settings["value_coef"],
            grad_clip=settings["max_grad_norm"],
            grad_clip_by="global_norm",
            use_kl_loss=False,
            vf_clip_param=math.inf,
        )
        .debugging(seed=seed)
        .callbacks(on_episode_end=_note_return)
    )


def _note_return(episode: Any, metrics_logger: Any, prev_episode_chunks: Any = (), **_: Any) -> None:
    """Log the return of an episode in the env runner, including the parts of the episode that were already sent."""
    whole = sum(chunk.get_return() for chunk in (*(prev_episode_chunks or ()), episode))
    metrics_logger.log_value("returns_in_order", whole, reduce="item_series")


def to_475(num_runners: int, seed: int, settings: dict[str, Any]) -> tuple[Callable[[float], Found], Close]:
    """Measure a run of PPO with the learner in this process."""
    torch.set_num_threads(1)

    def measure(limit_s: float) -> Found:
        clock = Clock()
        rays.start(num_runners + 1)
        sizes = settings["num_envs"], num_runners, settings["rollout_length"]
        config = configuration(*sizes, vf_share_layers=False)
        algorithm = with_settings(config, settings, seed).build_algo()
        clock.started()
        found = _learn(algorithm, clock, limit_s, settings)
        _stop(algorithm)
        return found

    return measure, lambda: None


def _learn(algorithm: Any, clock: Clock, limit_s: float, settings: dict[str, Any]) -> Found:
    # RLlib's own mean covers only the episodes of the last iteration, which may be few.
    returns: deque[float] = deque(maxlen=100)
    env_steps, mean_return, reached = 0, 0.0, False
    while not reached and clock.seconds() < limit_s and env_steps < settings["total_env_steps"]:
        result = algorithm.train()["env_runners"]
        env_steps = result["num_env_steps_sampled_lifetime"]
        ended = np.atleast_1d(result.get("returns_in_order", []))  # One return is a scalar; none is NaN.
        returns.extend(ended[~np.isnan(ended)].tolist())
        mean_return = statistics.fmean(returns or [0.0])
        reached = len(returns) == returns.maxlen and mean_return >= settings["stop_return"]
    return clock.found(env_steps, mean_return, reached)
