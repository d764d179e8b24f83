"""Autoreset modes: when the next episode begins. Checks that a ``VectorEnv`` follows the mode that it declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from parenv.errors import ConfigurationError
from parenv.memory.trees import as_array

NOBODY: Any = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Autoreset:
    """Answers to all questions that depend on the autoreset mode.

    Other files ask these questions, and none compares modes. A new mode is one more instance in :data:`MODES`. If its
    answers need a new question, add a field, and ask it in the files that use the other fields.

    Args:
        mode: Name of the mode for users.
        resets_in_step: Whether the step that ends an episode also resets. Its row is then the first observation of the
            next episode, and its info contains the final observation and the final info. In all other modes, its row
            is the final observation.
        spends_step: Whether the next step only resets. Its row is not a transition, and its reward is 0.
        caller_resets: Whether the caller must reset before the next step, with a mask of such sub-environments.
    """

    mode: AutoresetMode
    resets_in_step: bool = False
    spends_step: bool = False
    caller_resets: bool = False

    @staticmethod
    def of(mode: str | AutoresetMode) -> Autoreset:
        """Return the answers for a mode of Gymnasium, or for its value.

        Raises:
            ValueError: There is no such mode.
        """
        return MODES[AutoresetMode(mode)]

    @staticmethod
    def declared_by(env: Any) -> Autoreset:
        """Return the answers for the mode that a ``VectorEnv`` declares.

        Raises:
            ConfigurationError: The environment declares none.
        """
        declared = env.metadata.get("autoreset_mode")
        for mode, autoreset in MODES.items():
            if declared in (mode, mode.value):
                return autoreset
        raise ConfigurationError(
            f'{env} must declare metadata["autoreset_mode"], because parenv cannot tell reset steps from transitions '
            f"without it, got {declared}. Set it to AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED; "
            "parenv.testing.check_vector_env(make) detects the mode."
        )


SAME_STEP = Autoreset(AutoresetMode.SAME_STEP, resets_in_step=True)
NEXT_STEP = Autoreset(AutoresetMode.NEXT_STEP, spends_step=True)
DISABLED = Autoreset(AutoresetMode.DISABLED, caller_resets=True)
MODES = {autoreset.mode: autoreset for autoreset in (SAME_STEP, NEXT_STEP, DISABLED)}


class Resets:
    """The sub-environments that began an episode in the last step or only reset in the next one.

    Args:
        env: Environment, for messages.
        first_env_id: env_id of the first sub-environment, for messages.
        spends_step: Whether a step after the end of an episode only resets.

    Attributes:
        pending: Whether the next step only resets, bool ``[B]``.
        begun: Columns that began an episode in the last step, int64 ``[K]``.
    """

    def __init__(self, env: Any, first_env_id: int, spends_step: bool) -> None:
        self._env, self._first, self._spends_step = env, first_env_id, spends_step
        self.clear()

    def clear(self) -> None:
        """Note a reset of all sub-environments."""
        self.pending: Any = np.zeros(self._env.num_envs, bool)
        self.begun: Any = NOBODY
        self._ended: Any = NOBODY

    def take_step(self, ended: Any, columns: Any) -> Any:
        """Note a step; return the columns that only reset in it, int64 ``[K]``.

        Args:
            ended: Whether the episode ended, bool ``[B]``.
            columns: Columns of these ends, int64 ``[K]``.

        Raises:
            ConfigurationError: An episode ended in a step that must only reset.
        """
        if not self._spends_step:
            self.begun = columns
            return NOBODY
        self.begun, self._ended, self.pending = self._ended, columns, ended
        if ended[self.begun].any():
            env_id = self._first + self.begun[ended[self.begun]][0]
            raise ConfigurationError(
                f"{self._env} declares the autoreset mode NEXT_STEP, so the step after the end of an episode must only "
                f"reset, but this step of env_id {env_id} ended an episode again. Correct "
                'metadata["autoreset_mode"]; parenv.testing.check_vector_env(make) detects the mode.'
            )
        return self.begun


def check_reset_with_mask(env: Any, before: Sequence[Any], after: Sequence[Any], others: Any) -> None:
    """Check that a reset of some sub-environments did not change the others.

    Raises:
        ConfigurationError: The reset changed another sub-environment.
    """
    for old, new in zip(before, after, strict=True):
        for column in np.flatnonzero(others).tolist():
            if not np.array_equal(as_array(old[column]), as_array(new[column])):
                raise ConfigurationError(
                    f"{env} declares the autoreset mode DISABLED, but reset(options={{'reset_mask': ...}}) has also "
                    f"changed sub-environment {column}, whose mask is False. Let reset follow the mask, or correct "
                    'metadata["autoreset_mode"].'
                )
