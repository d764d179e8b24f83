"""Environments of Gymnasium that return odd values, for ordinary workers and other interpreters alike."""

import os

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no words")


def cycle():
    found = []
    found += [found, found]
    return found


OBSERVED = {
    "beyond": lambda t: [300, -1],
    "list": lambda t: [7, 8],
    "wide": lambda t: np.array([7, t], np.int64),
    "other dtype": lambda t: np.array([0.5, t], np.float64),
}
INFOS = {
    "complex": lambda: {"z": 1 + 2j},
    "sets": lambda: {"seen": [{3, 1}, {2}]},
    "memory": lambda: {"raw": memoryview(b"abc")},
    "unshowable": lambda: {"odd": {Unshowable(), Unshowable()}, "kept": 1},
    "text": lambda: {"text": "x" * 5_000_000},
    "items": lambda: {"items": list(range(300_000))},
    "array": lambda: {"big": np.arange(70_000_000, dtype=np.uint8)},
    "cycle": lambda: {"odd": cycle(), "kept": 1},
    "scalars": lambda: {"a": np.float32(0.5), "b": np.int8(3), "c": True, "d": None, "e": "ö", "f": np.float64(2.5)},
}


class Odd(gym.Env):
    """Environment that ends after three steps.

    Args:
        name: Key of :data:`OBSERVED` and :data:`INFOS`, or another oddity.
    """

    def __init__(self, name=""):
        dtype = {"other dtype": np.float32, "list": np.int64, "wide": np.int32}.get(name, np.uint8)
        self.observation_space = spaces.Box(0, 255, (2,), dtype)
        self.action_space = spaces.Discrete(3)
        self.name, self.t, self.kept = name, 0, None

    def _observation(self):
        return OBSERVED[self.name](self.t) if self.name in OBSERVED else np.full(2, self.t, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), None if self.name == "reset without info" else {}

    def step(self, action):
        self.t += 1
        if self.name == "unspeakable" and self.t == 2:
            raise UnspeakableError
        info = INFOS.get(self.name, dict)()
        returned = self._observation(), float(self.t), self.t == 3, False, info
        return list(returned) if self.name == "step returns a list" else returned

    def render(self):
        return [np.full((1080, 1920, 3), i, np.uint8) for i in range(12)]

    def same(self, value):
        return value

    def pid(self):
        return os.getpid()


class Rolling(Odd):
    """Environment that observes a Discrete space."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Discrete(9)

    def _observation(self):
        return self.t
