"""Policies of users, and a small network as the default policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from parenv.bench.environment import named_factory, refused
from parenv.errors import ConfigurationError
from parenv.memory.layout import torch_dtype
from parenv.memory.spaces import flatten, leaves, unflatten
from parenv.policy.policy import Action, Policy

HIDDEN = 64


def policy_by(factory: str | Callable[[], Any]) -> Any:
    """Make a policy with a factory, or with the factory that ``module:factory`` names.

    If the factory returns a tuple, such as ``(policy, learn)``, its first item is the policy.

    Raises:
        ConfigurationError: The factory does not exist, or raises.
    """
    make = named_factory(factory) if isinstance(factory, str) else factory
    with refused(f"the agent {factory} cannot be made"):
        made = make()
        return made[0] if isinstance(made, tuple) else made


class RandomNetwork(Policy):
    """Untrained MLP with two hidden layers of 64 and tanh, which samples its actions. Only its speed matters.

    Args:
        observation_space: Observation space of one environment. The network reads flat observations.
        action_space: Action space of one environment.

    Raises:
        ConfigurationError: One of the spaces has no fixed size.
    """

    takes_tensors = True

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        from torch import nn

        self._inputs, self._outputs = leaves(observation_space), leaves(action_space)
        if any(leaf.dtype is None for leaf in self._inputs):
            raise _no_network(observation_space)
        self._bounds = [bounds(space) for space in flatten(self._outputs, action_space)]
        self.module = nn.Sequential(
            nn.Linear(sum(leaf.items for leaf in self._inputs), HIDDEN), nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN), nn.Tanh(),
            nn.Linear(HIDDEN, sum(leaf.items for leaf in self._outputs)),
        )  # fmt: skip

    def act(self, observations: Any, carry: Any) -> Action:
        """Sample actions, tensors ``[B, *action]``."""
        import torch

        values_of = zip(self._inputs, flatten(self._inputs, observations), strict=True)
        rows = [values.reshape(len(values), leaf.items).float() for leaf, values in values_of]
        outputs = self.module(rows[0] if len(rows) == 1 else torch.cat(rows, -1))
        # A share of exactly 1 would be one above the highest integer.
        shares = (outputs + torch.randn_like(outputs)).sigmoid().clamp(max=1 - 1e-6).double()
        parts = shares.split([leaf.items for leaf in self._outputs], -1)
        actions = []
        for leaf, part, (low, high) in zip(self._outputs, parts, self._bounds, strict=True):
            lowest, highest = (torch.as_tensor(bound, device=part.device) for bound in (low, high))
            values = lowest + (highest - lowest) * part.reshape(len(part), *leaf.shape)
            actions.append(
                (values.floor() if np.dtype(leaf.dtype).kind in "biu" else values).to(torch_dtype(leaf.dtype))
            )
        return Action(unflatten(self._outputs, actions))


def bounds(space: Space[Any]) -> tuple[Any, Any]:
    """Return the lowest action of one leaf of a space and the highest action, which integers do not reach.

    An infinite bound of a box is replaced by -1 or 1, or by a distance of 1 from the other bound.

    Returns:
        Arrays of float64 with the shape of an action.

    Raises:
        ConfigurationError: The space has no fixed size.

    >>> space = spaces.Box(np.float32([-np.inf, 3.0]), np.float32([np.inf, np.inf]))
    >>> [bound.tolist() for bound in bounds(space)]
    [[-1.0, 3.0], [1.0, 4.0]]
    """
    match space:
        case spaces.Box():
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            below = np.where(np.isfinite(high), np.minimum(high - 1, -1.0), -1.0)
            low = np.where(np.isfinite(low), low, below)
            return low, np.where(np.isfinite(high), high, np.maximum(low + 1, 1.0))
        case spaces.Discrete() | spaces.MultiDiscrete():
            low = np.asarray(space.start, np.float64)
            return low, low + (space.n if isinstance(space, spaces.Discrete) else space.nvec)
        case spaces.MultiBinary():
            return np.zeros(space.shape), np.full(space.shape, 2.0)
    raise _no_network(space)


def _no_network(space: Space[Any]) -> ConfigurationError:
    return ConfigurationError(
        f"the default policy, a small network, does not support {space}. Pass another policy with agent=... or --agent "
        "module:factory."
    )
