"""Network of all systems: two hidden layers of 64 units, with a policy head and a value head."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def body() -> nn.Sequential:
    """Return the layers from observations ``[N, 4]`` to features ``[N, 64]``."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())


class Agent(nn.Module):
    """Policy and value function with shared features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body()
        self.actor, self.critic = nn.Linear(64, 2), nn.Linear(64, 1)

    def get_action_and_value(self, observations: Any) -> Any:
        """Return actions, log-probabilities, ``None`` in place of the entropy, and values."""
        hidden = self.body(observations)
        distribution = torch.distributions.Categorical(logits=self.actor(hidden))
        actions = distribution.sample()
        return actions, distribution.log_prob(actions), None, self.critic(hidden).squeeze(-1)
