"""Rate of rollouts ``[T, B]``: its measurement, the upper bound, and a loop as in CleanRL's ``ppo.py``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from environments import factory

from systems.loops import Close, Measure
from systems.networks import Agent


def delivery_rate(collect: Callable[[], int]) -> Measure:
    """Return a measurement of env steps per second, after one call that is not measured.

    Args:
        collect: Function that collects a batch and returns its number of env steps.
    """
    torch.set_num_threads(1)
    collect()

    def measure(seconds: float) -> float:
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            steps += collect()
        return steps / (time.perf_counter() - began)

    return measure


def limit(num_envs: int, num_processes: int, rollout_length: int) -> tuple[Measure, Close]:
    """Measure the upper bound: independent processes that act and step, without communication."""
    sys.path.insert(1, str(Path(__file__).parents[2]))
    from lib.common import IdealLoops, ideal_loop

    share = num_envs // num_processes
    loops = IdealLoops(lambda: ideal_loop(factory("cartpole"), _act_with(Agent()), share), num_processes)
    return loops.rate, loops.close


def _act_with(agent: Agent) -> Callable[[Any], Any]:
    def act(observations: Any) -> Any:
        with torch.inference_mode():
            return agent.get_action_and_value(torch.from_numpy(observations))[0].tolist()

    return act


def plain_loop(num_envs: int, rollout_length: int, kind: str) -> tuple[Measure, Close]:
    """Measure CleanRL's loop with a ``"SyncVectorEnv"`` or an ``"AsyncVectorEnv"``."""
    factories = [factory("cartpole")] * num_envs
    envs = gym.vector.SyncVectorEnv(factories) if kind == "SyncVectorEnv" else gym.vector.AsyncVectorEnv(factories)
    storage = _Storage(rollout_length, num_envs)
    agent = Agent()
    storage.next_observations = torch.as_tensor(envs.reset(seed=0)[0])

    def collect() -> int:
        for t in range(rollout_length):
            with torch.no_grad():
                action, log_prob, _, value = agent.get_action_and_value(storage.next_observations)
            storage.keep(t, action, log_prob, value, envs.step(action.numpy()))
        return rollout_length * num_envs

    return delivery_rate(collect), envs.close


class _Storage:
    """Arrays ``[T, B, ...]`` of a rollout in CleanRL's loop."""

    def __init__(self, T: int, B: int) -> None:
        self.observations, self.actions = torch.zeros(T, B, 4), torch.zeros(T, B, dtype=torch.int64)
        self.log_probs, self.rewards, self.dones, self.values = (torch.zeros(T, B) for _ in range(4))
        self.next_observations, self._next_done = torch.zeros(B, 4), torch.zeros(B)

    def keep(self, t: int, action: Any, log_prob: Any, value: Any, stepped: Any) -> None:
        """Write row ``t``, and keep the new observations and dones for row ``t + 1``."""
        self.observations[t], self.dones[t] = self.next_observations, self._next_done
        self.actions[t], self.log_probs[t], self.values[t] = action, log_prob, value
        observations, rewards, terminations, truncations, _ = stepped
        self.rewards[t] = torch.as_tensor(rewards)
        self.next_observations = torch.as_tensor(observations)
        self._next_done = torch.as_tensor(np.logical_or(terminations, truncations), dtype=torch.float32)
