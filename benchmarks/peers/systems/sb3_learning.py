"""PPO of Stable-Baselines3: rollouts, and training on CartPole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from systems.delivery import delivery_rate
from systems.learning import Clock, Found
from systems.loops import Close, Measure
from systems.networks import body

KINDS = {"DummyVecEnv": (DummyVecEnv, {}), "SubprocVecEnv": (SubprocVecEnv, {"start_method": "fork"})}


class Features(BaseFeaturesExtractor):
    """Features that the policy and the value function share."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, 64)
        self.body = body()

    def forward(self, observations: Any) -> Any:
        """Return features ``[N, 64]``."""
        return self.body(observations)


def make_envs(num_envs: int, kind: str, seed: int = 0) -> Any:
    """Return CartPoles, made as in the documentation of Stable-Baselines3."""
    vec_env, options = KINDS[kind]
    return make_vec_env("CartPole-v1", num_envs, seed=seed, vec_env_cls=vec_env, vec_env_kwargs=options)  # type: ignore[arg-type]


def rollouts(num_envs: int, rollout_length: int, kind: str) -> tuple[Measure, Close]:
    """Measure ``collect_rollouts`` with a ``"DummyVecEnv"`` or a ``"SubprocVecEnv"``."""
    envs = make_envs(num_envs, kind)
    shape = {"features_extractor_class": Features, "net_arch": []}
    model = PPO("MlpPolicy", envs, n_steps=rollout_length, policy_kwargs=shape, device="cpu")
    model.set_logger(Logger(None, []))
    _, callback = model._setup_learn(1)

    def collect() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, rollout_length)
        return rollout_length * num_envs

    return delivery_rate(collect), envs.close


class Until(BaseCallback):
    """Callback that ends the training at a mean return or after a time limit.

    Args:
        stop_return: Mean return of the last 100 episodes to reach.
        limit_s: Time limit in seconds.
        clock: Clock of the run.
    """

    def __init__(self, stop_return: float, limit_s: float, clock: Clock) -> None:
        super().__init__()
        self._stop_return, self._limit_s, self._clock = stop_return, limit_s, clock
        self.mean_return, self.reached = 0.0, False

    def _on_rollout_start(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]  # type: ignore[union-attr]
        self.mean_return = sum(returns) / max(1, len(returns))
        self.reached = len(returns) == 100 and self.mean_return >= self._stop_return

    def _on_step(self) -> bool:
        return not self.reached and self._clock.seconds() < self._limit_s


def to_475(kind: str, seed: int, settings: dict[str, Any]) -> tuple[Callable[[float], Found], Close]:
    """Measure a run of PPO with a ``"DummyVecEnv"`` or a ``"SubprocVecEnv"``."""
    torch.set_num_threads(1)
    learning_rate = settings["learning_rate"]

    def measure(limit_s: float) -> Found:
        clock = Clock()
        envs = make_envs(settings["num_envs"], kind, seed)
        clock.started()
        model = PPO(
            "MlpPolicy",
            envs,
            learning_rate=lambda remaining: remaining * learning_rate,
            n_steps=settings["rollout_length"],
            batch_size=settings["minibatch_size"],
            n_epochs=settings["epochs"],
            gamma=settings["gamma"],
            gae_lambda=settings["gae_lambda"],
            clip_range=settings["clip_range"],
            ent_coef=settings["entropy_coef"],
            vf_coef=settings["value_coef"],
            max_grad_norm=settings["max_grad_norm"],
            seed=seed,
            device="cpu",
        )
        model.set_logger(Logger(None, []))
        until = Until(settings["stop_return"], limit_s, clock)
        model.learn(settings["total_env_steps"], until)
        found = clock.found(model.num_timesteps, until.mean_return, until.reached)
        envs.close()
        return found

    return measure, lambda: None
