"""What ``reset`` and ``step`` of an environment must return, said where one returns something else."""

from __future__ import annotations

from typing import Any

from parenv.envs.values import shown

_OLDER = "An environment for Gym, before Gymnasium, needs a wrapper such as those of the package shimmy"
_SEVERAL_REWARDS = (
    "For several objectives, wrap the environment in LinearReward of the package mo-gymnasium. For several agents, use "
    "a PettingZoo environment and named policies"
)


def reset_result(returned: Any) -> Any:
    """The observation and the info that ``reset`` has returned.

    Raises:
        TypeError: it has returned something else.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise TypeError(f"reset must return (observation, info), but it returned {shown(returned)}. {_OLDER}")
    return returned


def explain_step(error: Exception, env_id: int) -> None:
    """Explain what ``step`` must return, if the caller failed to take apart what it has returned.

    Args:
        error: Exception, as the caller has caught it.
        env_id: Sub-environment that was stepped.
    """
    if error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return
    if "array element with a sequence" in str(error):
        error.args = (f"the reward of env_id {env_id} must be a number, got a sequence. {_SEVERAL_REWARDS}",)
    else:
        must = "step must return (observation, reward, terminated, truncated, info), the reward a number"
        error.add_note(f"{must}. {_OLDER}")
