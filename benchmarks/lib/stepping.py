"""Rates of vector envs and of a plain loop, with the same environments and actions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from lib.subjects import Sleeper

STEP_SECONDS = 0.8


def make_pong() -> Any:
    """Make Pong with a frame skip of 4 and single grayscale frames of 84 x 84 pixels."""
    import ale_py

    gym.register_envs(ale_py)
    return gym.wrappers.AtariPreprocessing(gym.make("ALE/Pong-v5", frameskip=1), noop_max=0)


MAKERS: dict[str, Callable[[], Any]] = {
    "cartpole": lambda: gym.make("CartPole-v1"),
    "lunarlander": lambda: gym.make("LunarLander-v3"),
    "halfcheetah": lambda: gym.make("HalfCheetah-v5"),
    "pong": make_pong,
    "sleeping": Sleeper,
}


def sampled_actions(make: Callable[[], Any], num_envs: int) -> Any:
    """Return 64 batches of random actions, ``[64, num_envs, ...]``, equal for all systems."""
    env = make()
    env.action_space.seed(0)
    actions = np.array([[env.action_space.sample() for _ in range(num_envs)] for _ in range(64)])
    env.close()
    return actions


def bare_loop(make: Callable[[], Any], actions: Any) -> Callable[[float], int]:
    """Make a loop ``(seconds) -> env steps`` that steps each environment, resets ended episodes and stores nothing."""
    envs = [make() for _ in range(actions.shape[1])]
    for env in envs:
        env.reset()
    steps = [env.step for env in envs]

    def run(seconds: float) -> int:
        count, deadline = 0, time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            for i, action in enumerate(actions[count % 64]):
                _, _, terminated, truncated, _ = steps[i](action)
                if terminated or truncated:
                    envs[i].reset()
            count += 1
        return count * len(envs)

    return run


def step_rate(envs: Any, actions: Any) -> float:
    """Return the env steps per second of consecutive calls of ``step``."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < STEP_SECONDS:
        for _ in range(8):
            envs.step(actions[count % 64])
            count += 1
    return count * actions.shape[1] / (time.perf_counter() - began)
