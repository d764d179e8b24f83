"""Environments of the comparisons, which work with every version of Gymnasium that a library pins."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

IDS = {"cartpole": "CartPole-v1", "lunarlander": "LunarLander-v3", "halfcheetah": "HalfCheetah-v5"}
MEAN_SLEEP_S = 0.002


class Sleeper(gym.Env[Any, Any]):
    """Environment whose step sleeps for an exponentially distributed time, 2 ms on average."""

    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._observation = np.zeros(4, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> Any:
        """Sleep for a random time."""
        time.sleep(self.np_random.exponential(MEAN_SLEEP_S))
        return self._observation, 0.0, False, False, {}


def make_pong() -> Any:
    """Return Pong with the usual preprocessing: frame skip 4, grey, 84 x 84 pixels, 4 stacked frames."""
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, frame_skip=4, grayscale_obs=True)
    return gym.wrappers.FrameStackObservation(env, 4)


def factory(case: str) -> Callable[[], Any]:
    """Return a function that makes an environment.

    Args:
        case: ``"cartpole"``, ``"lunarlander"``, ``"halfcheetah"``, ``"pong"`` or ``"sleeping"``.
    """
    special = {"pong": make_pong, "sleeping": Sleeper}
    return special[case] if case in special else partial(gym.make, IDS[case])
