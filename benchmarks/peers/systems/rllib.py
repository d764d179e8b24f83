"""RLlib's PPO on Ray: its env runners, and how it learns."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
import torch
from bench.other_libraries import rllib_collected as collected
from bench.other_libraries import rllib_configuration as configuration

from systems import rays
from systems.delivery import delivery_rate
from systems.learning import Clock, Found
from systems.loops import Close, Measure


def rollouts(num_envs: int, num_workers: int, rollout_length: int) -> tuple[Measure, Close]:
    """Episodes, or pieces of them, from all runners to this process."""
    rays.start(num_workers + 1)
    config = configuration("CartPole-v1", num_envs, num_workers, rollout_length, vf_share_layers=True)
    algorithm = config.build_algo()
    return delivery_rate(lambda: collected(algorithm)), lambda: _stop(algorithm)


def _stop(algorithm: Any) -> None:
    algorithm.stop()
    ray.shutdown()


def with_settings(config: Any, settings: dict[str, Any], seed: int) -> Any:
    """PPO as the others have it; RLlib knows more ways to hold it back, which are switched off."""
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
    """In the runner; the beginnings of the episode may have been sent already."""
    whole = sum(chunk.get_return() for chunk in (*(prev_episode_chunks or ()), episode))
    metrics_logger.log_value("returns_in_order", whole, reduce="item_series")


def to_475(num_runners: int, seed: int, settings: dict[str, Any]) -> tuple[Callable[[float], Found], Close]:
    """PPO with a learner in this process."""
    torch.set_num_threads(1)

    def measure(limit_s: float) -> Found:
        clock = Clock()
        rays.start(num_runners + 1)
        sizes = settings["num_envs"], num_runners, settings["rollout_length"]
        config = configuration("CartPole-v1", *sizes, vf_share_layers=False)
        algorithm = with_settings(config, settings, seed).build_algo()
        clock.started()
        found = _learn(algorithm, clock, limit_s, settings)
        _stop(algorithm)
        return found

    return measure, lambda: None


def _learn(algorithm: Any, clock: Clock, limit_s: float, settings: dict[str, Any]) -> Found:
    # RLlib's own mean is of the episodes that ended in the last iteration, however few.
    returns: deque[float] = deque(maxlen=100)
    env_steps, mean_return, reached = 0, 0.0, False
    while not reached and clock.seconds() < limit_s and env_steps < settings["total_env_steps"]:
        result = algorithm.train()["env_runners"]
        env_steps = result["num_env_steps_sampled_lifetime"]
        ended = np.atleast_1d(result.get("returns_in_order", []))  # One comes alone, and none as not a number.
        returns.extend(ended[~np.isnan(ended)].tolist())
        mean_return = statistics.fmean(returns or [0.0])
        reached = len(returns) == returns.maxlen and mean_return >= settings["stop_return"]
    return clock.found(env_steps, mean_return, reached)
