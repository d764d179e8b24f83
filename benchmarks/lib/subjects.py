"""Policies and environments that several benchmarks use."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from lib.common import nature_body


class Agent(torch.nn.Module):
    """MLP with layers of 4, 64, 64 and 2 units and a value head, which samples with ``torch.distributions``."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()
        )
        self.actor, self.critic = torch.nn.Linear(64, 2), torch.nn.Linear(64, 1)

    def get_action_and_value(self, observations: Any) -> Any:
        """Return actions, log-probabilities, ``None`` for the entropy, and values, each ``[N]``."""
        hidden = self.body(observations)
        distribution = torch.distributions.Categorical(logits=self.actor(hidden))
        actions = distribution.sample()
        return actions, distribution.log_prob(actions), None, self.critic(hidden).squeeze(-1)


class PixelAgent(Agent):
    """Convolutional network of Mnih et al. 2015 on observations ``[N, 4, 84, 84]`` in uint8, with six actions."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.body = nature_body()
        self.actor, self.critic = nn.Linear(512, 6), nn.Linear(512, 1)

    def get_action_and_value(self, observations: Any) -> Any:
        """Return actions, log-probabilities, ``None`` for the entropy, and values, each ``[N]``."""
        return super().get_action_and_value(observations.float() / 255.0)


class Sleeper(gym.Env[Any, Any]):
    """Environment whose steps sleep for an exponentially distributed time.

    Args:
        mean_s: Mean duration of a step in seconds.
    """

    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, mean_s: float = 0.002) -> None:
        self.mean_s = mean_s
        self._observation = np.zeros(4, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> Any:
        """Sleep for a random time."""
        time.sleep(self.np_random.exponential(self.mean_s))
        return self._observation, 0.0, False, False, {}


def make_pong() -> Any:
    """Make Pong with a frame skip of 4 and 4 stacked grayscale frames of 84 x 84 pixels."""
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=0, frame_skip=4, screen_size=84)
    return gym.wrappers.FrameStackObservation(env, 4)


def act_with(agent: Agent) -> Any:
    """Return a function that maps a batch of observations to a list of actions, as a worker does."""

    def act(observations: Any) -> Any:
        with torch.inference_mode():
            return agent.get_action_and_value(torch.from_numpy(observations))[0].tolist()

    return act


def zeros(observations: Any) -> Any:
    """Return the action 0 for each observation."""
    return np.zeros(len(observations), np.int64)
