"""Shared parts of PPO on CartPole, which ends at a mean return of the last 100 episodes."""

from __future__ import annotations

import time
from typing import Any

Found = dict[str, Any]


class Clock:
    """Seconds since everything began, and since there was something to step."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._started_s = 0.0

    def started(self) -> None:
        """Record that environments and processes are ready."""
        self._started_s = self.seconds()

    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self._began

    def found(self, env_steps: int, mean_return: float, reached: bool) -> Found:
        """Return the result at this moment."""
        return {
            "reached": bool(reached),
            "seconds": self.seconds() - self._started_s,
            "seconds_to_start": self._started_s,
            "env_steps": int(env_steps),
            "mean_return": float(mean_return),
        }
