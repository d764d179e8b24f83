"""How long a request may take: when each must be answered, and which are overdue."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from parenv.options import WorkerOptions


class Limits:
    """The limits in seconds on the answers to requests.

    Args:
        step_timeout_s: on steps and calls; ``None``: none.
        options: have that on resets.
        num_envs: rows.
    """

    def __init__(self, step_timeout_s: float | None, options: WorkerOptions, num_envs: int) -> None:
        self._limits_s = {"step_timeout_s": step_timeout_s, "reset_timeout_s": options.reset_timeout_s}
        self._ends_at = np.full(num_envs, math.inf)
        self._is_reset = np.zeros(num_envs, bool)
        self._any_reset = False
        self._steps_are_limited = step_timeout_s is not None

    @property
    def exist(self) -> bool:
        """Whether there may be a limit on what is under way."""
        return self._steps_are_limited or self._any_reset

    def begin(self, env_ids: Any, reset: bool = False) -> None:
        """A request was made now of these rows."""
        if not (reset or self.exist):
            return
        limit_s = self._limits_s["reset_timeout_s" if reset else "step_timeout_s"]
        self._ends_at[env_ids] = math.inf if limit_s is None else time.monotonic() + limit_s
        self._is_reset[env_ids] = reset
        self._any_reset = bool(self._is_reset.any())

    def begin_again(self, env_ids: Any) -> None:
        """Others answer for these rows, from now on."""
        if self.exist:
            rows = np.asarray(env_ids)
            for reset in (False, True):
                self.begin(rows[self._is_reset[rows] == reset], reset)

    def ends_at(self, unanswered: Any) -> float:
        """When the first of the unanswered requests is overdue, on the monotonic clock; infinite if none will be.

        Args:
            unanswered: bool ``[num_envs]``.
        """
        return float(self._ends_at[unanswered].min(initial=math.inf)) if self.exist else math.inf

    def overdue(self, unanswered: Any) -> tuple[list[int], str]:
        """The rows whose request is overdue, and the limit of the first of them in words."""
        late = np.flatnonzero(unanswered & (self._ends_at <= time.monotonic())).tolist()
        name = "reset_timeout_s" if late and self._is_reset[late[0]] else "step_timeout_s"
        return late, f"{name}={self._limits_s[name]:g}" if late else ""
