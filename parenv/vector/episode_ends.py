"""Episodes that ended with the last step, and the check that such sub-environments are reset."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from parenv.memory.step_buffer import StepBuffer


class EpisodeEnds:
    """Sub-environments whose episode ended with the last step, even if the user has not received that step.

    Args:
        step_buffer: Step buffer of the vector env.
        mode: Autoreset mode.

    Attributes:
        flags: Whether the episode ended, bool ``[N]``. With ``SAME_STEP`` the next episode has begun, so all are false.
        binding: Whether an ended episode needs a reset before the next step, as with ``DISABLED``.
    """

    def __init__(self, step_buffer: StepBuffer, mode: AutoresetMode) -> None:
        self._step_buffer, self._lasting = step_buffer, mode is not AutoresetMode.SAME_STEP
        self.flags = np.zeros(step_buffer.spec.num_envs, bool)
        self.binding = mode is AutoresetMode.DISABLED

    def note(self, rows: Any) -> None:
        """Read the flags of these rows from the step buffer."""
        if self._lasting:
            self.flags[rows] = self._step_buffer.terminated[rows] | self._step_buffer.truncated[rows]

    def check(self, rows: Any) -> None:
        """Check that these rows may be stepped.

        Raises:
            ResetNeeded: The episode of a row has ended.
        """
        if self.binding and self.flags[rows].any():
            ended = np.arange(len(self.flags))[rows][self.flags[rows]].tolist()
            raise ResetNeeded(
                f"the episodes of env_ids {ended} have ended, so they cannot be stepped with autoreset_mode=DISABLED. "
                'Call reset(options={"reset_mask": terminated | truncated}) first.'
            )
