"""Agents of users, and a small network as the default agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces import flatdim

from parenv.bench.environment import named_factory, refused
from parenv.errors import ConfigurationError
from parenv.memory.spaces import flatten, leaves, unflatten
from parenv.policy.policy import Action, Policy

HIDDEN = 64


class Agent(NamedTuple):
    """Policy with its update.

    Args:
        policy: Policy, as :class:`~parenv.AsyncWorkerPool` takes it.
        learn: Update from one rollout, ``(rollout) -> None``. Default: nothing is learned.
        loss_fn: ``loss_fn`` for a pool with ``parallelism="gradient"``, if the algorithm can learn from gradients.
            Default: workers do not learn.
    """

    policy: Any
    learn: Callable[[Any], object] | None = None
    loss_fn: Callable[[Any, Any], Any] | None = None


def agent_by(factory: str | Callable[[], Any]) -> Agent:
    """Make an agent with a factory, or with the factory that ``module:factory`` names.

    Raises:
        ConfigurationError: The factory does not exist, raises, or makes something else.
    """
    make = named_factory(factory) if isinstance(factory, str) else factory
    with refused(f"the agent {factory} cannot be made"):
        made = make()
    if not isinstance(made, tuple):
        return Agent(made)
    if not 1 <= len(made) <= 3 or not all(part is None or callable(part) for part in made[1:]):
        raise ConfigurationError(
            f"the agent must be a policy, (policy, learn) or (policy, learn, loss_fn), got {made!r}"
        )
    return Agent(*made)


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
        parts = flatten(self._outputs, action_space)
        self._draws = [drawing(space) for space in parts]
        self._widths = [flatdim(space) for space in parts]
        self.module = nn.Sequential(
            nn.Linear(sum(leaf.items for leaf in self._inputs), HIDDEN), nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN), nn.Tanh(),
            nn.Linear(HIDDEN, sum(self._widths)),
        )  # fmt: skip

    def act(self, observations: Any, carry: Any) -> Action:
        """Sample actions, tensors ``[B, *action]``."""
        import torch

        rows = [values.reshape(len(values), -1).float() for values in flatten(self._inputs, observations)]
        outputs = self.module(rows[0] if len(rows) == 1 else torch.cat(rows, -1))
        drawn = [draw(part) for draw, part in zip(self._draws, outputs.split(self._widths, -1), strict=True)]
        return Action(unflatten(self._outputs, drawn))


Draw = Callable[[Any], Any]
"""Function from outputs of the network ``[B, width]``, with the width of a flat action, to actions ``[B, *action]``."""


@singledispatch
def drawing(space: Space[Any]) -> Draw:
    """Return a function that samples actions of one leaf of an action space.

    Raises:
        ConfigurationError: The space has no fixed size.
    """
    raise _no_network(space)


@drawing.register
def _discrete(space: spaces.Discrete) -> Draw:
    start = int(space.start)
    return lambda outputs: _drawn(outputs) + start


@drawing.register
def _multi_discrete(space: spaces.MultiDiscrete) -> Draw:
    import torch

    sizes, start = space.nvec.flatten().tolist(), torch.as_tensor(np.asarray(space.start))

    def draw(outputs: Any) -> Any:
        drawn = torch.stack([_drawn(part) for part in outputs.split(sizes, -1)], -1)
        return drawn.reshape(len(outputs), *space.shape) + start.to(drawn.device)

    return draw


@drawing.register
def _multi_binary(space: spaces.MultiBinary) -> Draw:
    return lambda outputs: outputs.sigmoid().bernoulli().char().reshape(-1, *space.shape)


@drawing.register
def _box(space: spaces.Box) -> Draw:
    import torch

    lowest, highest = (torch.as_tensor(bound) for bound in finite_bounds(space))
    dtype = torch.as_tensor(space.low).dtype

    def draw(outputs: Any) -> Any:
        low, high = lowest.to(outputs.device), highest.to(outputs.device)
        shares = (outputs + torch.randn_like(outputs)).sigmoid().reshape(len(outputs), *space.shape)
        return (low + (high - low) * shares).to(dtype)

    return draw


def finite_bounds(space: spaces.Box) -> Sequence[Any]:
    """Return the lowest and the highest action to sample.

    An infinite bound is replaced by -1 or 1, or by a distance of 1 from the other bound.

    >>> space = spaces.Box(np.float32([-np.inf, 3.0]), np.float32([np.inf, np.inf]))
    >>> [bound.tolist() for bound in finite_bounds(space)]
    [[-1.0, 3.0], [1.0, 4.0]]
    """
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    below = np.where(np.isfinite(high), np.minimum(high - 1, -1.0), -1.0)
    low = np.where(np.isfinite(low), low, below)
    return low, np.where(np.isfinite(high), high, np.maximum(low + 1, 1.0))


def _drawn(logits: Any) -> Any:
    return logits.softmax(-1).multinomial(1).squeeze(-1)


def _no_network(space: Space[Any]) -> ConfigurationError:
    return ConfigurationError(
        f"the small network that acts by default does not support {space}: give a policy that does, with agent=... or "
        "--agent module:factory"
    )
