"""Environments of the tests of sessions, which any interpreter can make by name."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import gymnasium as gym
import numpy as np


class Ledger(gym.Env[Any, Any]):
    """An environment that names its process, its episode and its step, and does what its actions say.

    An action is a text, or a dict ``{"do": text, ...}``. ``"die"``, ``"hang"`` and ``"raise"`` do so. ``"echo"``
    returns the ``value`` of the dict as the observation.
    """

    def __init__(self, has_text: bool = True) -> None:
        # Another interpreter cannot describe a space of texts. Its values may be any plain data all the same.
        self.observation_space = self.action_space = gym.spaces.Text(1000) if has_text else gym.spaces.Discrete(2)
        self.episode, self.steps, self.level = 0, 0, 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        given = dict(options or {})
        if given.get("raise"):
            raise ValueError("the reset has failed")
        if given.get("die"):
            os._exit(3)
        time.sleep(given.get("sleep", 0.0))
        self.episode, self.steps = self.episode + 1, 0
        drawn = int(self.np_random.integers(1 << 30))
        return f"episode {self.episode}", {"seed": seed, "drawn": drawn, "options": given, "pid": os.getpid()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        asked = {"do": action} if isinstance(action, str) else action
        self.steps += 1
        observation: Any = f"step {self.steps}"
        match asked["do"]:
            case "die":
                os._exit(3)
            case "hang":
                time.sleep(1000.0)
            case "raise":
                raise ValueError("the step has failed")
            case "sleep":
                time.sleep(asked["seconds"])
            case "echo":
                observation = asked["value"]
            case "wrong":
                return observation, "much", False, False, {}  # type: ignore[return-value]
        return observation, float(self.steps), self.steps >= 5, False, {"pid": os.getpid(), "drawn": self.draw()}

    def draw(self) -> int:
        return int(self.np_random.integers(1 << 30))

    def grade(self, base: int, *, factor: int = 1) -> dict[str, Any]:
        return {"failure": base * factor, "level": self.level}

    def secret(self) -> Any:
        return object()

    def render(self) -> Any:
        return np.full((2, 2, 3), self.steps, np.uint8)


class Camera(gym.Env[Any, Any]):
    """An environment whose observations are large, and that overwrites the arrays of earlier ones."""

    observation_space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (200, 300, 3), np.uint8),
        depth=gym.spaces.Tuple(
            [gym.spaces.Box(0.0, 1.0, (200, 300), np.float32), gym.spaces.Box(0, 9, (2,), np.int64)]
        ),
    )
    action_space = gym.spaces.Discrete(256)

    def __init__(self) -> None:
        self.image, self.depth = np.zeros((200, 300, 3), np.uint8), np.zeros((300, 200), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.step(1)[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.image[:], self.depth[:] = action, action / 256
        self.depth[0, 1] = -1.0
        # The transposed array is not contiguous.
        return {"image": self.image, "depth": (self.depth.T, np.full(2, action))}, 1.0, False, False, {}

    def frames(self) -> Any:
        return [self.image, np.zeros((2000, 2000), np.int64)]


class Waiting(gym.Env[Any, Any]):
    """An environment whose methods are coroutines, and that counts how many of its class wait at once."""

    observation_space = gym.spaces.Discrete(1 << 30)
    action_space = gym.spaces.Box(0.0, 10.0, (), np.float64)
    at_once = 0

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        super().reset(seed=seed)
        await asyncio.sleep(0.0)
        return 0, {"seed": seed, "drawn": int(self.np_random.integers(1 << 30))}

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if action < 0:
            raise ValueError("the step has failed")
        if action == 10.0:
            raise asyncio.CancelledError("the client was cancelled")
        Waiting.at_once += 1
        await asyncio.sleep(float(action))
        most, Waiting.at_once = Waiting.at_once, Waiting.at_once - 1
        return most, 1.0, False, False, {"loop": id(asyncio.get_running_loop())}

    async def grade(self) -> int:
        await asyncio.sleep(0.0)
        return 7

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0.0)
