"""Time and result of a run of PPO on CartPole, shared by all implementations."""

from __future__ import annotations

import time
from typing import Any

Found = dict[str, Any]


class Clock:
    """Clock that measures start-up and training separately."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._started_s = 0.0

    def started(self) -> None:
        """Record that environments and processes are ready."""
        self._started_s = self.seconds()

    def seconds(self) -> float:
        """Return the seconds since the clock was made, start-up included."""
        return time.perf_counter() - self._began

    def found(self, env_steps: int, mean_return: float, reached: bool) -> Found:
        """Return the result of a run that ends now."""
        return {
            "reached": bool(reached),
            "seconds": self.seconds() - self._started_s,
            "seconds_to_start": self._started_s,
            "env_steps": int(env_steps),
            "mean_return": float(mean_return),
        }
