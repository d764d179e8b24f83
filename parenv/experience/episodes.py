"""Statistics of episodes that have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from parenv.experience.summary import Summarized

_COLUMNS: dict[str, Any] = {"returns": np.float64, "lengths": np.int64, "seconds": np.float64, "env_ids": np.int64}


@dataclass(frozen=True, repr=False)
class EpisodeStatistics(Summarized):
    """Episodes in the order in which they ended.

    If an environment has Gymnasium's ``RecordEpisodeStatistics`` or a similar wrapper, returns and lengths come from
    ``info["episode"]``. An end without this info, such as the end of a life, is not an episode.

    Args:
        returns: Undiscounted sums of rewards, float64 ``[K]``.
        lengths: Numbers of env steps, int64 ``[K]``.
        seconds: Seconds from the reset to the last step, float64 ``[K]``.
        env_ids: Sub-environments, int64 ``[K]``.

    >>> episodes = EpisodeStatistics.of(returns=[9.0, 11.0], lengths=[9, 11], seconds=[0.1, 0.2], env_ids=[0, 3])
    >>> len(episodes), episodes.mean_return, episodes.mean_length
    (2, 10.0, 10.0)
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    env_ids: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        """Mean of the returns; NaN if there are no episodes."""
        return float(np.mean(self.returns)) if len(self) else float("nan")

    @property
    def mean_length(self) -> float:
        """Mean length in env steps; NaN if there are no episodes."""
        return float(np.mean(self.lengths)) if len(self) else float("nan")

    def _facts(self) -> dict[str, Any]:
        means = {name: f"{getattr(self, name):.6g}" for name in ("mean_return", "mean_length")}
        return {"episodes": len(self), **means}

    def columns(self) -> list[Any]:
        """Return the columns as plain data, for :meth:`of`."""
        return [getattr(self, name).tolist() for name in _COLUMNS]

    @classmethod
    def of(
        cls, returns: Sequence[float], lengths: Sequence[int], seconds: Sequence[float], env_ids: Sequence[int]
    ) -> EpisodeStatistics:
        """Make statistics from any sequences."""
        given = zip((returns, lengths, seconds, env_ids), _COLUMNS.values(), strict=True)
        return cls(*(np.asarray(values, dtype) for values, dtype in given))

    @classmethod
    def joined(cls, parts: Sequence[EpisodeStatistics]) -> EpisodeStatistics:
        """Join the episodes of several parts."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return NO_EPISODES
        columns: list[Any] = [np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS]
        return cls(*columns)


NO_EPISODES = EpisodeStatistics.of((), (), (), ())


@dataclass(frozen=True, repr=False)
class EvaluationResult(Summarized):
    """Result of an evaluation.

    Args:
        policy_version: Version that was evaluated.
        env_steps: Number of env steps of the training when the evaluation began.
        episodes: Episodes of the evaluation.
        weights: State dict of this version if it was evaluated beside the training and has a torch module; otherwise
            empty. For named policies, a state dict of each policy with a module.

    >>> episodes = EpisodeStatistics.of(returns=[9.0, 11.0], lengths=[9, 11], seconds=[0.1, 0.2], env_ids=[0, 3])
    >>> EvaluationResult(3, 12_800, episodes).mean_return
    10.0
    """

    policy_version: int
    env_steps: int
    episodes: EpisodeStatistics
    weights: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mean_return(self) -> float:
        """Mean of the returns."""
        return self.episodes.mean_return

    def _facts(self) -> dict[str, Any]:
        about = {"policy_version": self.policy_version, "env_steps": self.env_steps}
        return about | self.episodes._facts()
