"""Real environments with short episodes, by name, so that any interpreter can make them."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium as gym


def limited(name: str, steps: int | None = None) -> Any:
    return gym.make(name, max_episode_steps=steps)


def recorded(name: str, steps: int) -> Any:
    return gym.wrappers.RecordEpisodeStatistics(limited(name, steps))


def pong() -> Any:
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=0, frame_skip=4, screen_size=84)
    return gym.wrappers.TimeLimit(gym.wrappers.FrameStackObservation(env, 4), 6)


ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "CartPole": ("limited", {"name": "CartPole-v1", "steps": 7}),
    "CartPole recorded": ("recorded", {"name": "CartPole-v1", "steps": 5}),
    "Acrobot": ("limited", {"name": "Acrobot-v1", "steps": 5}),
    "MountainCarContinuous": ("limited", {"name": "MountainCarContinuous-v0", "steps": 3}),
    "MountainCarContinuous recorded": ("recorded", {"name": "MountainCarContinuous-v0", "steps": 6}),
    "Pendulum": ("limited", {"name": "Pendulum-v1", "steps": 1}),
    "FrozenLake": ("limited", {"name": "FrozenLake-v1", "steps": 6}),
    "Taxi": ("limited", {"name": "Taxi-v4", "steps": 4}),
    "Blackjack": ("limited", {"name": "Blackjack-v1"}),
    "Blackjack recorded": ("recorded", {"name": "Blackjack-v1", "steps": 4}),
    "CliffWalking": ("limited", {"name": "CliffWalking-v1", "steps": 5}),
    "HalfCheetah": ("limited", {"name": "HalfCheetah-v5", "steps": 4}),
    "Hopper": ("recorded", {"name": "Hopper-v5", "steps": 6}),
    "Pong": ("pong", {}),
}
"""Function of this module and its arguments, by a name."""
if importlib.util.find_spec("Box2D"):  # Box2D has no wheel for Python 3.14.
    ENVIRONMENTS |= {
        "LunarLander": ("limited", {"name": "LunarLander-v3", "steps": 6}),
        "BipedalWalker": ("limited", {"name": "BipedalWalker-v3", "steps": 6}),
    }
