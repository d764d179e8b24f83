"""Whose episode has ended: who may not be stepped where nobody resets by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from parenv.memory.step_buffer import StepBuffer


class EpisodeEnds:
    """Whose episode ended with its last step, whether or not anybody received that.

    Args:
        step_buffer: the step buffer.
        mode: what happens where an episode ends.

    Attributes:
        flags: bool ``[N]``; all false with ``SAME_STEP``, where another episode has begun at once.
        binding: whether these need a reset before their next step, which is so with ``DISABLED``.
    """

    def __init__(self, step_buffer: StepBuffer, mode: AutoresetMode) -> None:
        self._step_buffer, self._lasting = step_buffer, mode is not AutoresetMode.SAME_STEP
        self.flags = np.zeros(step_buffer.spec.num_envs, bool)
        self.binding = mode is AutoresetMode.DISABLED

    def note(self, rows: Any) -> None:
        """Read how the last step of these rows ended."""
        if self._lasting:
            self.flags[rows] = self._step_buffer.terminated[rows] | self._step_buffer.truncated[rows]

    def check(self, rows: Any) -> None:
        """Check that these rows may be stepped.

        Raises:
            ResetNeeded: one may not.
        """
        if self.binding and self.flags[rows].any():
            ended = np.arange(len(self.flags))[rows][self.flags[rows]].tolist()
            raise ResetNeeded(
                f"the episodes of env_ids {ended} have ended: with autoreset_mode=DISABLED, reset them by "
                'reset(options={"reset_mask": terminated | truncated}) before their next step'
            )
