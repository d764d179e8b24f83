"""The environments of the comparisons, for whatever version of Gymnasium a peer pins."""

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
    """A step that sleeps: exponential, mean 2 ms."""

    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._observation = np.zeros(4, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> Any:
        """Sleep."""
        time.sleep(self.np_random.exponential(MEAN_SLEEP_S))
        return self._observation, 0.0, False, False, {}


def make_pong() -> Any:
    """Pong as it is usually seen: grey, 84 x 84, 4 frames of 4 skips each."""
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, frame_skip=4, grayscale_obs=True)
    return gym.wrappers.FrameStackObservation(env, 4)


def factory(case: str) -> Callable[[], Any]:
    """Return a factory; ``case``: cartpole, lunarlander, halfcheetah, pong or sleeping."""
    special = {"pong": make_pong, "sleeping": Sleeper}
    return special[case] if case in special else partial(gym.make, IDS[case])
