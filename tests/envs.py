"""Environments that many tests step. Workers import this module for them, and not a module of tests."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from parenv.testing import LedgerEnv

PAIR, PAIRS, TWO = np.zeros(2, np.float32), spaces.Box(-1, 1, (2,)), spaces.Discrete(2)


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


class Plain(gym.Env[Any, Any]):
    """Shows the same observation all the time.

    Args:
        observation: By default two zeros.
        space: Space of the observation.
        action_space: By default there are two actions.
        length: Number of steps of an episode, which never ends by default.
        reward: Reward of each step, or a function of the action.
        on_step: Called with the environment in each step, which has the attributes ``steps`` and ``action``. If the
            result is a dict, it is the info.
    """

    def __init__(
        self,
        observation: Any = PAIR,
        space: Any = PAIRS,
        action_space: Any = TWO,
        *,
        length: float = math.inf,
        reward: Any = 0.0,
        on_step: Callable[[Any], object] | None = None,
    ) -> None:
        self.observation_space, self.action_space, self.observation = space, action_space, observation
        self.length, self.reward, self.on_step = length, reward, on_step

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation, {}

    def step(self, action: Any) -> Any:
        assert self.steps < self.length, "its episode has ended"
        self.steps, self.action = self.steps + 1, action
        info = None if self.on_step is None else self.on_step(self)
        reward = self.reward(action) if callable(self.reward) else self.reward
        return self.observation, reward, self.steps == self.length, False, info if isinstance(info, dict) else {}


class Drawn(gym.Env[Any, Any]):
    """Draws observations, rewards and the length of an episode from its seed. The reward depends on the action.

    Args:
        on_step: Called with the environment before each step, which has the attributes ``seed``, ``index`` and
            ``steps``.
        on_reset: Called with the environment after the seed is set.
        longest: Maximum length.
    """

    observation_space = spaces.Box(-1, 1, (4,))
    action_space = TWO
    render_mode: str | None = None

    def __init__(
        self,
        on_step: Callable[[Any], object] | None = None,
        on_reset: Callable[[Any], object] | None = None,
        longest: int = 12,
    ) -> None:
        self._on_step, self._on_reset, self._longest = on_step, on_reset, longest

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seed, self.index, self.steps = seed, (options or {}).get("index", -1), 0
        if self._on_reset is not None:
            self._on_reset(self)
        self.length = int(self.np_random.integers(2, self._longest + 1))
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self._on_step is not None:
            self._on_step(self)
        reward = float(self.np_random.random()) * (1 + int(action))
        is_over = self.steps == self.length
        info = {"is_success": self.length % 2 == 0, "index": self.index, "odd": object()} if is_over else {}
        return self._observation(), reward, is_over, False, info

    def render(self) -> Any:
        return np.full((8, 8, 3), self.steps, np.uint8)

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


class Filmed(Drawn):
    """Renders its steps."""

    render_mode = "rgb_array"


def when(is_due: Callable[[Any], bool], act: Callable[[Any], object], flags: Path | None, env: Any) -> None:
    """Act if an environment is at that point, with flags only the first time for each seed."""
    if is_due(env) and (flags is None or once(flags / f"{env.seed}")):
        act(env)


def at_step(number: int, env: Any) -> bool:
    """Whether an environment is in that step."""
    return bool(env.steps == number)


def of_index(index: int, env: Any) -> bool:
    """Whether an environment is in its second step in the episode with that index."""
    return bool(env.index == index and env.steps == 2)


def fail(*_: object) -> None:
    raise ValueError("the simulator is not there")


def sys_exit(*_: object) -> None:
    raise SystemExit(3)


class Alternating(Drawn):
    """Its episodes are successes if the action is 0 in the first step, and another one in each step after it."""

    def step(self, action: Any) -> Any:
        self.right = int(action) == self.steps % 2 and (self.steps == 0 or self.right)
        *returned, info = super().step(action)
        return *returned, {**info, "is_success": self.right}


class Masked(Drawn):
    """Allows one action in each step, by its info. Its episodes are successes if only such actions were taken."""

    def reset(self, **given: Any) -> Any:
        self.right = True
        return super().reset(**given)[0], self._mask()

    def step(self, action: Any) -> Any:
        self.right = self.right and bool(self._mask()["action_mask"][int(action)])
        *returned, info = super().step(action)
        return *returned, {**info, **self._mask(), "is_success": self.right}

    def _mask(self) -> dict[str, Any]:
        return {"action_mask": np.arange(2) == (self.steps // 2) % 2}
