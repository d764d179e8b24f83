"""Environments that many tests step. Workers import this module for them, and not a module of tests."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv

from parenv.testing import LedgerEnv


def ledgers(count: int, **options: Any) -> list[Any]:
    """Factories of ledgers with the numbers from 0 on."""
    return [functools.partial(LedgerEnv, env_id, **options) for env_id in range(count)]


class OwnVectorEnv(SyncVectorEnv):
    """A pool takes a plain SyncVectorEnv apart and steps its sub-environments by itself; this one it does not."""


class Copied(gym.ObservationWrapper[Any, Any, Any]):
    """Returns new arrays, as SyncVectorEnv needs of an environment that reuses its own."""

    def observation(self, observation: Any) -> Any:
        return observation.copy()
