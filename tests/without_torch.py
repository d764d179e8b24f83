"""Environments and policies for tests, in a module that does not import torch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Words(gym.Env[Any, Any]):
    """Environment whose observations have parts with and without a fixed size."""

    observation_space = gym.spaces.Dict(
        {"text": gym.spaces.Text(8), "box": gym.spaces.Box(-1, 1, (3,), np.float64), "n": gym.spaces.Discrete(5)}
    )
    action_space = gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(-1, 1, (2,), np.float32)})

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._observation(), float(self.steps), self.steps == 5, False, {}

    def _observation(self) -> Any:
        word = "abcdefgh"[: int(self.np_random.integers(1, 8))]
        return {"text": word, "box": self.np_random.normal(size=3).clip(-1, 1), "n": self.np_random.integers(5)}


class WithInfos(Words):
    """Environment of a fixed size with infos: a mask after each reset and a speed after each step."""

    observation_space = gym.spaces.Box(0, 9, (1,))
    action_space = gym.spaces.Discrete(3)

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "speed": float(self.steps) / 2}

    def reset(self, **more: Any) -> Any:
        observation, _ = super().reset(**more)
        return observation, {"mask": self.np_random.integers(2, size=3).astype(bool)}

    def _observation(self) -> Any:
        return np.array([self.steps], np.float32)


class WithoutElements(Words):
    """Environment whose observation, action and info have arrays without elements."""

    observation_space = gym.spaces.Dict({"n": gym.spaces.Discrete(5), "none": gym.spaces.Box(-1, 1, (2, 0))})
    action_space = gym.spaces.Box(-1, 1, (0, 3))

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        *rest, info = super().step(action)
        return *rest, {**info, "nothing": np.zeros((3, 0))}

    def _observation(self) -> Any:
        return {"n": self.np_random.integers(5), "none": np.zeros((2, 0), np.float32)}


def nothing(observations: Any) -> Any:
    return np.zeros((len(observations["n"]), 0, 3), np.float32)


def by_mask(observations: Any, mask: Any) -> Any:
    return mask.argmax(1)


def anything(observations: Any) -> Any:
    B = len(observations["n"])
    return {"a": np.arange(B) % 3, "b": np.zeros((B, 2), np.float32)}
