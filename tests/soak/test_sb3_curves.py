"""Check over several seeds that SB3 models learn as well on parenv's workers as without them (``make soak``)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env

from parenv.adapters.sb3 import accelerate

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("warnings_are_expected")]
SEEDS = (1, 2, 3)
PENDULUM: dict[str, Any] = {"learning_rate": 1e-3, "learning_starts": 400, "train_freq": 1, "gradient_steps": 1}
LUNAR: dict[str, Any] = {
    "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 1000, "gamma": 0.99,
    "target_update_interval": 250, "train_freq": 4, "gradient_steps": 4, "exploration_fraction": 0.2,
    "exploration_final_eps": 0.1, "policy_kwargs": {"net_arch": [256, 256]},
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mean_return(
    kind: Any, env_id: str, n_envs: int, steps: int, seed: int, how: dict[str, Any], **settings: Any
) -> Any:
    """Train a model and return the mean return of its last episodes."""
    # Given an id, make_vec_env sets a render mode, and LunarLander would simulate the flames too.
    envs = make_vec_env(partial(gym.make, env_id), n_envs, seed)
    model = kind("MlpPolicy", envs, seed=seed, device="cpu", stats_window_size=20, **settings)
    if how:
        with accelerate(model, num_workers=2, **how):
            model.learn(steps)
    else:
        model.learn(steps)
    envs.close()
    return float(np.mean([episode["r"] for episode in model.ep_info_buffer]))


@pytest.mark.parametrize(
    ("kind", "env_id", "n_envs", "steps", "settings"),
    [(SAC, "Pendulum-v1", 1, 5000, PENDULUM), (DQN, "LunarLander-v3", 4, 60_000, LUNAR)],
)
def test_async_ends_within_the_noise_of_seeds(
    kind: Any, env_id: str, n_envs: int, steps: int, settings: dict[str, Any]
) -> None:
    if env_id.startswith("LunarLander"):
        pytest.importorskip("Box2D", reason="box2d has no wheel for Python 3.14")
    plain, on_workers = (
        np.array([mean_return(kind, env_id, n_envs, steps, seed, how, **settings) for seed in SEEDS])
        for how in ({}, {"mode": "async"})
    )
    print(f"\n{kind.__name__} on {env_id}: {plain.round(1)} without workers, {on_workers.round(1)} with")
    spread = max(np.ptp(plain), np.ptp(on_workers)) + 0.1 * abs(plain.mean())
    assert abs(plain.mean() - on_workers.mean()) <= spread


def test_ppo_solves_cartpole_with_every_seed_exactly_as_without_workers() -> None:
    zoo: dict[str, Any] = {
        "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8,
        "learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.2 * left,
    }  # fmt: skip
    for seed in SEEDS:
        plain, on_workers = (
            mean_return(PPO, "CartPole-v1", 8, 60_000, seed, how, **zoo) for how in ({}, {"mode": "sync"})
        )
        print(f"\nPPO on CartPole-v1, seed {seed}: {plain:.1f}")
        assert plain == on_workers > 400
