"""Divergence of a policy from the version that acted, which decides whether it is published."""

from __future__ import annotations

import copy
import math
from typing import Any

from parenv.errors import ConfigurationError
from parenv.experience.agent_rollouts import AgentRollout
from parenv.experience.rollout import Rollout
from parenv.memory.trees import joined_axes, map_trees
from parenv.policy.policy import Policy, TorchPolicy, as_policy, is_module

_MAX_LOG_RATIO = 80.0
"""Largest argument of exp that does not overflow float32."""


def has_moved(on: Any, given: Any, first: Any, min_kl: Any, settings: Any) -> bool:
    """Return whether a policy has moved far enough from the version that acted in a rollout to be published.

    Args:
        on: Rollout.
        given: Policy or module to publish.
        first: Policy that the pool was made with.
        min_kl: Minimum divergence in nats. A divergence that is NaN is enough.
        settings: Settings to publish. If there are any, the policy is published anyway.

    Raises:
        ConfigurationError: An argument of the publish is wrong or missing, or the policy has no ``log_prob``.
    """
    if not isinstance(on, Rollout):
        raise ConfigurationError(
            f"min_kl needs on=rollout with the rollout that the policy has learned from, got on={on!r}"
        )
    if isinstance(min_kl, bool) or not isinstance(min_kl, int | float) or not 0 < min_kl < math.inf:
        raise ConfigurationError(f"min_kl must be a positive number of nats, such as 0.01, got {min_kl!r}")
    if "log_prob" not in on.extras:
        raise ConfigurationError(
            f'min_kl needs rollouts with the extra "log_prob", got the extras {sorted(on.extras)}. Return it from the '
            "policy's act."
        )
    return bool(settings) or not kl_from(on, given, first) < min_kl


def kl_from(rollout: Rollout, given: Any, first: Any) -> float:
    """Estimate the mean divergence of the version that acted from a policy: the mean of ``r - 1 - log r``.

    ``r`` is the probability of an action now over its probability when it was drawn. The estimate has no bias and is
    never below 0 (Schulman, "Approximating KL divergence", 2020, k3).

    Raises:
        ConfigurationError: The policy has no ``log_prob``.
    """
    import torch

    policy = _acting(given, first)
    log_prob = getattr(policy, "log_prob", None)
    if log_prob is None:
        raise ConfigurationError(
            f"min_kl needs a policy with a method log_prob(observations, actions), got a {type(policy).__name__}. Add "
            "the method, or use a TorchPolicy."
        )
    parameters = () if policy.module is None else policy.module.parameters()
    block = rollout.to(next((parameter.device for parameter in parameters), "cpu"))
    observations, actions = (map_trees(joined_axes, tree) for tree in (block.observations, block.actions))
    with torch.no_grad():
        now = torch.as_tensor(log_prob(observations, actions)).reshape(-1)
        log_ratio = now - torch.as_tensor(block.extras["log_prob"]).reshape(-1).to(now)
        each = log_ratio.clamp(max=_MAX_LOG_RATIO).exp() - 1 - log_ratio
        there = block.alive if isinstance(block, AgentRollout) else block.valid
        return float(each[there.reshape(-1)].mean())


def _acting(given: Any, first: Any) -> Policy:
    """Return the policy of the pool with the module to publish."""
    if isinstance(given, Policy):
        return given
    if not is_module(given):
        raise ConfigurationError(f"min_kl needs the module or the policy, got {type(given)}")
    if isinstance(first, TorchPolicy):
        policy = copy.copy(first)
        policy.module = given
        return policy
    return as_policy(given)
