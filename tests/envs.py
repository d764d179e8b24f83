"""Environments that many tests step. Workers import this module for them, and not a module of tests."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
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


def once(flag: Path) -> bool:
    """Whether this is the first time that any process asks."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def taken(order: Path) -> bool:
    """Whether there is a file that no process has removed before."""
    try:
        order.unlink()
    except FileNotFoundError:
        return False
    return True


def kill_oneself(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_oneself(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def segfault(*_: object) -> None:
    ctypes.string_at(0)


def hold_the_gil(*_: object) -> None:
    sum(range(10**13))


def sleep_long(*_: object) -> None:
    time.sleep(1000)


class Acting(LedgerEnv):
    """A ledger that does something before each step or reset.

    Args:
        env_id: Number of the ledger.
        on_step: Called with the environment before each step.
        on_reset: Called with the environment before each reset.
        **options: Further arguments of the ledger.
    """

    def __init__(
        self,
        env_id: int,
        on_step: Callable[[Any], object] | None = None,
        on_reset: Callable[[Any], object] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(env_id, **options)
        self.env_id, self._on_step, self._on_reset = env_id, on_step, on_reset

    @property
    def episode(self) -> int:
        """Number of the episode, which is -1 before the first reset."""
        return int(self._buffer[1])

    @property
    def steps(self) -> int:
        """Steps of the episode so far."""
        return int(self._buffer[2])

    def do(self, act: Callable[[Any], Any]) -> Any:
        """Call a function with this environment, for ``pool.call``."""
        return act(self)

    def reset(self, **kwargs: Any) -> Any:
        if self._on_reset is not None:
            self._on_reset(self)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._on_step is not None:
            self._on_step(self)
        return super().step(action)


def slow(env_id: int, seconds: float) -> Acting:
    """A ledger whose steps take so long."""
    return Acting(env_id, lambda env: time.sleep(seconds))
