"""Rollouts of Tianshou's collector."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from environments import factory
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, ShmemVectorEnv
from torch import nn

from systems.delivery import delivery_rate
from systems.loops import Close, Measure
from systems.networks import Agent


class Actor(nn.Module):
    """Actor with the signature that Tianshou requires. Its collector does not compute values."""

    def __init__(self) -> None:
        super().__init__()
        self.agent = Agent()

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        """Return logits ``[N, 2]`` and the recurrent state."""
        return self.agent.actor(self.agent.body(torch.as_tensor(obs))), state


def rollouts(num_envs: int, rollout_length: int, kind: str) -> tuple[Measure, Close]:
    """Measure ``collect`` with a ``"DummyVectorEnv"`` or a ``"ShmemVectorEnv"``."""
    envs = {"DummyVectorEnv": DummyVectorEnv, "ShmemVectorEnv": ShmemVectorEnv}[kind]([factory("cartpole")] * num_envs)
    policy = ProbabilisticActorPolicy(
        actor=Actor(),
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=gym.spaces.Discrete(2),
        action_scaling=False,
        action_bound_method=None,
    )
    steps = rollout_length * num_envs
    buffer = VectorReplayBuffer(steps, num_envs)
    collector: Any = Collector(policy, envs, buffer)
    collector.reset()

    def collect() -> int:
        found = collector.collect(n_step=steps).n_collected_steps
        collector.reset_buffer()
        return int(found)

    return delivery_rate(collect), envs.close
