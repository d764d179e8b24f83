"""Episodes that ended with the last step, and the check that such sub-environments are reset."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded

from parenv.envs.autoreset import Autoreset
from parenv.memory.step_buffer import StepBuffer


class EpisodeEnds:
    """Sub-environments whose episode ended with the last step, even if the user has not received that step.

    Args:
        step_buffer: Step buffer of the vector env.
        autoreset: Autoreset mode.

    Attributes:
        flags: Whether the episode ended, bool ``[N]``. If the same step resets, the next episode has begun, so all are
            false.
        binding: Whether an ended episode needs a reset of the user before the next step.
    """

    def __init__(self, step_buffer: StepBuffer, autoreset: Autoreset) -> None:
        self._step_buffer, self._lasting = step_buffer, not autoreset.resets_in_step
        self.flags = np.zeros(step_buffer.spec.num_envs, bool)
        self.binding = autoreset.caller_resets

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
