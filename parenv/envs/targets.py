"""What a step of sub-environments writes to, beside the observations."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from parenv.envs.episode_statistics import Recorded
from parenv.envs.infos import InfoRows


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
    """The episodes of single environments that ended so far."""
    rewards: Any
    """``[T, B]``."""
    plain: dict[str, Any]
    """``"terminated"`` and ``"truncated"``, ``[T, B]``, false before."""
    infos: InfoRows
    """Where infos go that the user has named."""

    @property
    def num_ends(self) -> int:
        """How many episodes have ended so far."""

    def add_ends(self, columns: Any) -> Any:
        """Room for ends of some sub-environments of a batch: all of :data:`~parenv.memory.layout.END_DTYPE`."""
