"""Policies that many tests act with. Workers import this module for them, and not a module of tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenv import Policy
from parenv.policy.policy import Action


def zeros(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


def lean(observations: Any) -> Any:
    """Push a pole to where it leans; for a ledger, the action is 0 for the first observation of an episode only."""
    return (observations[:, 2] > 0).astype(np.int64)


class Counter(Policy):
    """Counts the steps of each episode in its carry, from 10 on."""

    def initial_carry(self, batch: int) -> Any:
        return np.full(batch, 10)

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(zeros(observations), {"steps": carry.copy()}, carry + 1)
