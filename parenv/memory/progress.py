"""What every worker is doing, readable at any time: one cache line per worker at the head of the shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenv.memory.layout import ALIGNMENT, aligned

DOING = (
    "starting",
    "waiting",
    "setup_fn",
    "making the environment",
    "reset",
    "step",
    "act",
    "postprocess",
    "call",
    "evaluate",
    "loading the policy",
    "closing",
)
"""What a worker can be doing; the words that error messages use."""
_CODE = {words: code for code, words in enumerate(DOING)}
_ROW = np.dtype([("doing", "<i8"), ("env_id", "<i8"), ("env_steps", "<i8")])


def header_bytes(num_workers: int) -> int:
    """Bytes before the weights: a line for the pool, a line per worker."""
    return aligned(ALIGNMENT * (1 + num_workers), 4096)


class Progress:
    """One worker's line.

    Args:
        buffer: the shared memory.
        worker: index of the worker.
    """

    def __init__(self, buffer: Any, worker: int) -> None:
        row = np.ndarray((), _ROW, buffer, ALIGNMENT * (1 + worker))
        self._closing = np.ndarray((1,), "?", buffer, 0)
        self._doing, self._env_id, self._env_steps = (row[name].reshape(1) for name in _ROW.fields or ())

    def begin(self, doing: str, env_id: int = -1) -> None:
        """Say what comes now, one of :data:`DOING`."""
        self._doing[0] = _CODE[doing]
        self._env_id[0] = env_id

    @property
    def doing(self) -> str:
        """One of :data:`DOING`."""
        return DOING[int(self._doing[0])]

    @property
    def env_id(self) -> int:
        """The sub-environment at work, or -1."""
        return int(self._env_id[0])

    @property
    def env_steps(self) -> int:
        """Env steps so far, moving while a rollout is under way."""
        return int(self._env_steps[0])

    def add_env_steps(self, count: int) -> None:
        """Count env steps."""
        self._env_steps[0] += count

    @property
    def closing(self) -> bool:
        """Whether the driver wants everybody to end: looked at between two steps."""
        return bool(self._closing[0])

    def set_closing(self) -> None:
        """Tell every worker to end."""
        self._closing[0] = True

    def describe(self) -> str:
        """What the worker is doing, in words for an error message."""
        return self.doing if self.env_id < 0 else f"{self.doing} of env_id {self.env_id}"
