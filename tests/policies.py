"""Policies of many tests, in a module that workers import instead of a test module."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenv import Policy
from parenv.policy.policy import Action


def zeros(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


def lean(observations: Any) -> Any:
    """Push a pole in the direction in which it leans. In a ledger, only the first action of an episode is 0."""
    return (observations[:, 2] > 0).astype(np.int64)


class Counter(Policy):
    """Policy that counts the steps of each episode in its carry, starting at 10."""

    def initial_carry(self, batch: int) -> Any:
        return np.full(batch, 10)

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(zeros(observations), {"steps": carry.copy()}, carry + 1)
