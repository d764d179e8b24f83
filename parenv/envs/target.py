"""Where a step writes to, beside the observations."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from parenv.envs.infos import InfoRows
from parenv.envs.recorded import Recorded


class End(NamedTuple):
    """Where an episode ended in a rollout, how, and after how many seconds.

    Args:
        step: row.
        column: column.
        terminated: whether by the environment.
        truncated: whether by a limit.
        seconds: from the reset to the last step.
        recorded: return and length, where a wrapper has said them; else they come of the rewards.
        counts: whether what ended is an episode for the statistics; a life is none.
    """

    step: int
    column: int
    terminated: bool
    truncated: bool
    seconds: float
    recorded: Recorded | None = None
    counts: bool = True


class Target(Protocol):
    """Where a step writes to, beside the observations."""

    finals: list[Any]
    """``[K, *obs]`` per leaf: the observations that episodes end with."""
    ends: list[End]
    """The episodes that ended so far."""
    rewards: Any
    """``[T, B]``."""
    infos: InfoRows
    """Where infos go that the user has named."""
