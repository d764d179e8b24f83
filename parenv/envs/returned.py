"""Errors for environments whose ``reset`` or ``step`` returns the wrong objects."""

from __future__ import annotations

from typing import Any

from parenv.envs.fitting import shown

_PAIRS = tuple, list
_OLDER = "Wrap an environment that was written for Gym, such as with the package shimmy."


def reset_result(returned: Any) -> Any:
    """Check that ``reset`` returned an observation and an info, and return both.

    Raises:
        TypeError: ``reset`` returned another object.
    """
    if not isinstance(returned, _PAIRS) or len(returned) != 2:
        raise TypeError(f"reset must return (observation, info), got {shown(returned)}. {_OLDER}")
    return returned


def explain_step(error: Exception) -> None:
    """Add a note on the result of ``step`` to an error, if the caller could not unpack that result.

    Args:
        error: Exception that the caller caught.
    """
    if error.__traceback__ is not None and error.__traceback__.tb_next is None:
        must = "step must return (observation, reward, terminated, truncated, info) with a number as the reward"
        error.add_note(f"{must}. {_OLDER}")
