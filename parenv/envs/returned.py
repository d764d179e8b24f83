"""What ``reset`` and ``step`` of an environment must return, said where one returns something else."""

from __future__ import annotations

from typing import Any

from parenv.envs.values import shown

_OLDER = "An environment for Gym, before Gymnasium, needs a wrapper such as those of the package shimmy"


def reset_result(returned: Any) -> Any:
    """The observation and the info that ``reset`` has returned.

    Raises:
        TypeError: it has returned something else.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise TypeError(f"reset must return (observation, info), but it returned {shown(returned)}. {_OLDER}")
    return returned


def explain_step(error: Exception) -> None:
    """Note what ``step`` must return, if the caller failed to take apart what it has returned.

    Args:
        error: as the caller has caught it.
    """
    if error.__traceback__ is not None and error.__traceback__.tb_next is None:
        must = "step must return (observation, reward, terminated, truncated, info), the reward a number"
        error.add_note(f"{must}. {_OLDER}")
