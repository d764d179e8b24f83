"""Errors for environments whose ``reset`` or ``step`` returns the wrong objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from parenv.envs.fitting import shown
from parenv.memory.trees import as_array

NOTHING = object()
"""The result of a step that has not returned."""
_PAIRS = tuple, list
_OLDER = "Wrap an environment that was written for Gym, such as with the package shimmy."
_MUST = "step must return (observation, reward, terminated, truncated, info) with a number as the reward"
_SEVERAL_REWARDS = (
    "For several objectives, wrap the environment in LinearReward of the package mo-gymnasium. For several agents, use "
    "a PettingZoo environment and named policies."
)


def reset_result(returned: Any) -> Any:
    """Check that ``reset`` returned an observation and an info, and return both.

    Raises:
        TypeError: ``reset`` returned another object.
    """
    if not isinstance(returned, _PAIRS) or len(returned) != 2:
        raise TypeError(f"reset must return (observation, info), got {shown(returned)}. {_OLDER}")
    return returned


def explain_step(error: BaseException, returned: Any, env_id: int, agent: str = "") -> None:
    """Explain an error by the result of ``step``, if that result has the wrong form.

    Args:
        error: Exception that the caller caught when it read the result. Its text is replaced.
        returned: Result of ``step``, or :data:`NOTHING`.
        env_id: Sub-environment that was stepped.
        agent: Agent whose part of the result this is. Default: the sub-environment has one agent.
    """
    if returned is not NOTHING and (problem := _problem(returned, env_id, f" for agent {agent!r}" if agent else "")):
        error.args = (problem,)


def check_flags(flags: Iterable[Any]) -> None:
    """Refuse objects such as lists and text, which count as true unless they are empty.

    Raises:
        TypeError: A flag is not a boolean.
    """
    for flag in flags:
        if flag is not True and flag is not False and not _is_flag(flag):
            raise TypeError(f"terminated and truncated must be booleans, got {shown(flag)}")


def _problem(returned: Any, env_id: int, of_agent: str) -> str:
    """Return why ``step`` must not return this result; empty without a reason."""
    if not isinstance(returned, _PAIRS) or len(returned) != 5:
        got = f"{len(returned)} values" if isinstance(returned, _PAIRS) else shown(returned)
        return f"{_MUST}, got {got}. {_OLDER}"
    _, reward, terminated, truncated, _ = returned
    if got := _reward_problem(reward):
        advice = _SEVERAL_REWARDS if got in ("a sequence", "a dict") else f"{_MUST}."
        if of_agent:
            advice = "Return one number for each agent."
        return f"the reward of env_id {env_id} must be a number, got {got}{of_agent}. {advice}"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not _is_flag(flag):
            must = f"{name} of env_id {env_id} must be a boolean"
            return f"{must}, got {shown(flag)}{of_agent}. Return True or False."
    return ""


def _reward_problem(reward: Any) -> str:
    """Describe a reward that is not a number; empty if it is one."""
    if isinstance(reward, Mapping):
        return "a dict"
    try:
        array = as_array(reward)
    except Exception:
        array = np.empty(2)  # Sequences of different lengths, for example.
    if array.ndim:
        return "a sequence" if array.size != 1 else f"{shown(reward)}, a sequence of one"
    return "" if array.dtype.kind in "biuf" else shown(reward)


def _is_flag(flag: Any) -> bool:
    """Tell whether an object has a truth value of its own, and not the one of its length."""
    try:
        return not hasattr(type(flag), "__len__") or (hasattr(type(flag), "__bool__") and bool(flag) in (True, False))
    except Exception:
        return False  # The truth value of an array with several items is ambiguous.
