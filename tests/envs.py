"""Environments of many tests, in a module that workers import instead of a test module."""

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
    """Return factories of ledgers with the numbers 0 to ``count - 1``."""
    return [functools.partial(LedgerEnv, env_id, **options) for env_id in range(count)]


class OwnVectorEnv(SyncVectorEnv):
    """SyncVectorEnv that a pool steps as a whole. It steps the sub-environments of a plain SyncVectorEnv itself."""


class Copied(gym.ObservationWrapper[Any, Any, Any]):
    """Wrapper that returns new arrays, which SyncVectorEnv requires if an environment reuses its buffers."""

    def observation(self, observation: Any) -> Any:
        return observation.copy()


def once(flag: Path) -> bool:
    """Return whether this is the first call in any process, by creating a file."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def taken(order: Path) -> bool:
    """Remove a file; return whether it existed."""
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
    """LedgerEnv that calls a function before each step or reset.

    Args:
        env_id: Number of the ledger.
        on_step: Function that is called with the environment before each step.
        on_reset: Function that is called with the environment before each reset.
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
        """Number of steps of the episode so far."""
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
    """Return a ledger whose steps take a number of seconds."""
    return Acting(env_id, lambda env: time.sleep(seconds))


class Plain(gym.Env[Any, Any]):
    """Environment with a constant observation.

    Args:
        observation: Observation (default: two zeros).
        space: Space of the observation.
        action_space: Space of the actions (default: two actions).
        length: Number of steps of an episode (default: endless).
        reward: Reward of each step, or a function of the action.
        on_step: Function that is called with the environment in each step, after ``steps`` and ``action`` are set. If
            it returns a dict, that is the info.
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


FRAME = np.zeros((8, 8, 3), np.uint8)
"""Array into which environments draw every frame."""


class Drawn(gym.Env[Any, Any]):
    """Environment that draws observations, rewards and episode lengths from its seed. Rewards also depend on actions.

    Args:
        on_step: Function that is called with the environment at the beginning of each step. The environment has the
            attributes ``seed``, ``index`` and ``steps``.
        on_reset: Function that is called with the environment in each reset, after the seed is set.
        longest: Maximum number of steps of an episode.
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
        FRAME[:] = self.steps
        return FRAME

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


class Filmed(Drawn):
    """Environment with a render mode, whose frames show the step."""

    render_mode = "rgb_array"


def when(is_due: Callable[[Any], bool], act: Callable[[Any], object], flags: Path | None, env: Any) -> None:
    """Call a function if a condition holds for an environment, with ``flags`` only once for each seed."""
    if is_due(env) and (flags is None or once(flags / f"{env.seed}")):
        act(env)


def at_step(number: int, env: Any) -> bool:
    """Return whether an environment is in a given step."""
    return bool(env.steps == number)


def of_index(index: int, env: Any) -> bool:
    """Return whether an environment is in the second step of the episode with a given index."""
    return bool(env.index == index and env.steps == 2)


def fail(*_: object) -> None:
    raise ValueError("the simulator is not there")


def sys_exit(*_: object) -> None:
    raise SystemExit(3)


class Alternating(Drawn):
    """Environment whose episodes are successes if the actions are 0, 1, 0, 1, ..."""

    def step(self, action: Any) -> Any:
        self.right = int(action) == self.steps % 2 and (self.steps == 0 or self.right)
        *returned, info = super().step(action)
        return *returned, {**info, "is_success": self.right}


class Masked(Drawn):
    """Environment whose infos allow one action in each step. Episodes are successes if all actions are allowed."""

    def reset(self, **given: Any) -> Any:
        self.right = True
        return super().reset(**given)[0], self._mask()

    def step(self, action: Any) -> Any:
        self.right = self.right and bool(self._mask()["action_mask"][int(action)])
        *returned, info = super().step(action)
        return *returned, {**info, **self._mask(), "is_success": self.right}

    def _mask(self) -> dict[str, Any]:
        return {"action_mask": np.arange(2) == (self.steps // 2) % 2}


def broken(env_id: int, how: str) -> Acting:
    """Return a ledger that ends or stops its process in the second step of each life, from plain data."""
    return Acting(env_id, functools.partial(_in_second_step, {"dies": kill_oneself, "hangs": sleep_long}[how]))


def _in_second_step(act: Callable[[], object], env: Acting) -> None:
    if env.steps == 1:
        act()


def paid() -> Plain:
    """Return an environment whose reward is the action."""
    return Plain(action_space=spaces.Discrete(1000), length=5, reward=float)
