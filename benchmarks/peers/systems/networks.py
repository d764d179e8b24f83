"""Network of all systems: 4-64-64-2 with a value head."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def body() -> nn.Sequential:
    """Make the layers from observations ``[N, 4]`` to features ``[N, 64]``."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())


class Agent(nn.Module):
    """Policy and value from the same features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body()
        self.actor, self.critic = nn.Linear(64, 2), nn.Linear(64, 1)

    def get_action_and_value(self, observations: Any) -> Any:
        """Actions, log-probabilities, no entropy, values."""
        hidden = self.body(observations)
        distribution = torch.distributions.Categorical(logits=self.actor(hidden))
        actions = distribution.sample()
        return actions, distribution.log_prob(actions), None, self.critic(hidden).squeeze(-1)
