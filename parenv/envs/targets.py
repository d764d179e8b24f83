"""The protocol of the objects to which a step writes rewards, ends and infos."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from parenv.envs.episode_statistics import Recorded
from parenv.envs.infos import InfoRows


class End(NamedTuple):
    """The end of an episode in a rollout.

    Args:
        step: Row of the last step.
        column: Column of the sub-environment.
        terminated: Whether the environment ended the episode.
        truncated: Whether a limit ended the episode.
        seconds: Seconds from the reset to the last step.
        recorded: Return and length from a recorder. Without them, the rewards give both.
        counts: Whether the statistics count the end. They do not count the end of a life.
        lost_by: Index in :data:`~parenv.experience.endings.ENDINGS` of the reason for which the episode was lost, or 0.
    """

    step: int
    column: int
    terminated: bool
    truncated: bool
    seconds: float
    recorded: Recorded | None = None
    counts: bool = True
    lost_by: int = 0


class Target(Protocol):
    """An object to which a step writes everything except the observations."""

    finals: list[Any]
    """Final observations, ``[K, *obs]`` per leaf."""
    ends: list[End]
    """Ends of episodes of single environments so far."""
    rewards: Any
    """``[T, B]``."""
    plain: dict[str, Any]
    """Flags ``"terminated"`` and ``"truncated"``, ``[T, B]``, false before the step."""
    infos: InfoRows
    """Rows of the infos that the user has named."""

    @property
    def num_ends(self) -> int:
        """Number of episodes that have ended so far."""

    def add_ends(self, columns: Any) -> Any:
        """Return unwritten records for the ends of a batch, :data:`~parenv.memory.layout.END_DTYPE` ``[K]``."""
