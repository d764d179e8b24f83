"""Check that an update of an example is equal to one of Stable-Baselines3 on the same rollout and weights."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from test_examples import load
from torch import nn

from parenv.returns import gae

T, NUM_ENVS, EPOCHS, MINIBATCH = 32, 2, 2, 16
TOTAL_ENV_STEPS = 1_000


class Noise(gym.Env[Any, Any]):
    """Random environment with episodes of 13 steps, so that rollouts contain complete and incomplete episodes."""

    action_space = Discrete(3)

    def __init__(self, observation_space: Box) -> None:
        self.observation_space = observation_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.left = 13
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.observation_space.sample(), float(self.np_random.normal()), self.left == 0, False, {}


def networks_of_mlp(policy: Any) -> list[Any]:
    return [policy.mlp_extractor.policy_net, policy.action_net, policy.mlp_extractor.value_net, policy.value_net]


def networks_of_cnn(policy: Any) -> list[Any]:
    return [policy.features_extractor, policy.action_net, policy.value_net]


@pytest.mark.more
@pytest.mark.parametrize(
    ("name", "policy", "networks", "space"),
    [
        ("ppo", "MlpPolicy", networks_of_mlp, Box(-1.0, 1.0, (4,))),
        ("atari_ppo", "CnnPolicy", networks_of_cnn, Box(0, 255, (4, 84, 84), np.uint8)),
    ],
)
def test_an_update_is_equal_to_one_of_stable_baselines(
    name: str, policy: str, networks: Any, space: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    example: Any = load(name, monkeypatch)
    args = example.Args(total_env_steps=TOTAL_ENV_STEPS, epochs=EPOCHS, minibatch_size=MINIBATCH)
    envs = DummyVecEnv([lambda: Noise(space)] * NUM_ENVS)
    reference = PPO(
        policy, envs, seed=1, device="cpu", n_steps=T, batch_size=MINIBATCH, n_epochs=EPOCHS, gamma=args.gamma,
        gae_lambda=args.gae_lambda, clip_range=args.clip_range, ent_coef=args.entropy_coef, vf_coef=args.value_coef,
        max_grad_norm=args.max_grad_norm, learning_rate=lambda left: args.learning_rate * left,
    )  # fmt: skip
    weights = nn.ModuleList(networks(reference.policy))
    agent = example.Agent(*((space.shape[0], 3) if name == "ppo" else (3,)))
    with torch.no_grad():
        for ours, theirs in zip(agent.parameters(), weights.parameters(), strict=True):
            ours.copy_(theirs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    _, callback = reference._setup_learn(TOTAL_ENV_STEPS, None)

    for _ in range(3):
        reference.collect_rollouts(envs, callback, reference.rollout_buffer, T)
        kept: Any = reference.rollout_buffer
        observations, actions, rewards, values, log_probs, starts = (
            torch.as_tensor(getattr(kept, field).copy())
            for field in ("observations", "actions", "rewards", "values", "log_probs", "episode_starts")
        )
        ends = torch.cat([starts[1:], torch.as_tensor(reference._last_episode_starts)[None]]).bool()
        assert ends.any()
        with torch.no_grad():
            next_values = torch.cat([values[1:], agent.get_value(torch.as_tensor(reference._last_obs))[None]])
        steps = (rewards, values, next_values, ends, torch.zeros_like(ends))
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda)
        np.testing.assert_allclose(advantages, kept.advantages, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(returns, kept.returns, rtol=1e-5, atol=1e-6)

        draws = [np.random.permutation(T * NUM_ENVS) for _ in range(EPOCHS)]
        with monkeypatch.context() as patch:
            patch.setattr(np.random, "permutation", partial(next, iter(draws)))
            reference._update_current_progress_remaining(reference.num_timesteps, TOTAL_ENV_STEPS)
            reference.train()
        with monkeypatch.context() as patch:
            # Stable-Baselines3 orders the samples by environment, the examples by step.
            rows = [torch.as_tensor(drawn % T * NUM_ENVS + drawn // T) for drawn in draws]
            patch.setattr(torch, "randperm", partial(next, iter(rows)))
            extras = {"log_prob": log_probs, "advantages": advantages, "returns": returns}
            block = SimpleNamespace(observations=observations, actions=actions.squeeze(-1).long(), extras=extras)
            taken = (block.observations, block.actions, *extras.values()) if name == "ppo" else (block,)
            example.update(agent, optimizer, args, reference.num_timesteps, *taken)
        for ours, theirs in zip(agent.parameters(), weights.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
