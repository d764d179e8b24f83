"""How long a request may take: when each was made, and which are overdue."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np


class StepLimit:
    """The limit in seconds on the answer to a request.

    Args:
        limit_s: ``None`` for none; then nothing is kept.
        num_envs: rows.
    """

    def __init__(self, limit_s: float | None, num_envs: int) -> None:
        self._limit_s = math.inf if limit_s is None else limit_s
        self._made_at = np.zeros(num_envs)
        self.exists = limit_s is not None

    def begin(self, env_ids: Any, counts: bool = True) -> None:
        """A request was made now of these rows; whether the limit is for it."""
        if self.exists:
            self._made_at[env_ids] = time.monotonic() if counts else math.inf

    def ends_at(self, unanswered: Any) -> float:
        """When the first of the unanswered requests is overdue, on the monotonic clock; infinite if none will be.

        Args:
            unanswered: bool ``[num_envs]``.
        """
        made_at = self._made_at[unanswered] if self.exists else ()
        return float(min(made_at)) + self._limit_s if len(made_at) else math.inf

    def overdue(self, unanswered: Any) -> list[int]:
        """The rows whose request is overdue."""
        late = unanswered & (self._made_at + self._limit_s <= time.monotonic())
        return np.flatnonzero(late).tolist()
