"""Statistics of episodes that have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from parenv.experience.endings import ENDINGS, LOST, endings_of, indices_of, is_finished
from parenv.experience.episode_figures import EpisodeFigures
from parenv.experience.metrics import EVALUATION, metrics_of
from parenv.experience.summary import Summarized, text_table

_COLUMNS: dict[str, Any] = {"returns": np.float64, "lengths": np.int64, "seconds": np.float64, "env_ids": np.int64}
_TEXT = np.array(ENDINGS).dtype
ALL_COLUMNS = (*_COLUMNS, "ended_by")
"""Names of all columns, in the order of the arguments."""


@dataclass(frozen=True, repr=False)
class EpisodeStatistics(Summarized):
    """Episodes in the order in which they ended.

    If an environment has Gymnasium's ``RecordEpisodeStatistics`` or a similar wrapper, returns and lengths come from
    ``info["episode"]``. An end without this info, such as the end of a life, is not an episode.

    An episode is lost if its environment did not end it, for example because its worker died. Return, length and
    seconds of a lost episode are sums over the steps that were delivered. Means leave lost episodes out.

    Args:
        returns: Undiscounted sums of rewards, float64 ``[K]``.
        lengths: Numbers of env steps, int64 ``[K]``.
        seconds: Seconds from the reset to the last step, float64 ``[K]``.
        env_ids: Sub-environments, int64 ``[K]``.
        ended_by: Reason for the end, str ``[K]``: ``"terminated"`` (also if a limit truncated the same step),
            ``"truncated"``, or for a lost episode ``"environment_error"``, ``"step_timeout"``, ``"worker_died"``,
            ``"host_lost"`` or ``"restarted"``.

    >>> episodes = EpisodeStatistics.of(returns=[9.0, 11.0], lengths=[9, 11], seconds=[0.1, 0.2], env_ids=[0, 3])
    >>> len(episodes), episodes.mean_return, episodes.mean_length
    (2, 10.0, 10.0)
    >>> ended_by = ["terminated", "worker_died"]
    >>> both = EpisodeStatistics.of([9.0, 4.0], [9, 4], [0.1, 0.1], [0, 3], ended_by=ended_by)
    >>> len(both), both.mean_return, both.lost.env_ids.tolist()
    (2, 9.0, [3])
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    env_ids: npt.NDArray[np.int64]
    ended_by: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.returns)

    @cached_property
    def finished(self) -> Self:
        """Episodes that their environments ended."""
        return self if LOST.isdisjoint(self.ended_by.tolist()) else self._only(is_finished(self.ended_by))

    @property
    def lost(self) -> Self:
        """Episodes that their environments did not end."""
        return self._only(~is_finished(self.ended_by))

    @cached_property
    def figures(self) -> EpisodeFigures:
        """Mean, interquartile mean and intervals of the returns, as :func:`parenv.evaluate` reports them."""
        return EpisodeFigures.of_strata([self])

    @property
    def mean_return(self) -> float:
        """Mean of the returns of finished episodes; NaN if there are none."""
        returns = self.finished.returns
        return float(np.mean(returns)) if len(returns) else float("nan")

    @property
    def mean_length(self) -> float:
        """Mean length of finished episodes in env steps; NaN if there are none."""
        lengths = self.finished.lengths
        return float(np.mean(lengths)) if len(lengths) else float("nan")

    def __str__(self) -> str:
        return "\n".join(text_table([*zip(*self.figures.cells().items(), strict=True)]))

    def _facts(self) -> dict[str, Any]:
        means = {name: f"{getattr(self, name):.6g}" for name in ("mean_return", "mean_length")}
        lost = len(self) - int(is_finished(self.ended_by).sum())
        return {"episodes": len(self), **means, **({"lost": lost} if lost else {})}

    def columns(self) -> list[Any]:
        """Return the columns as plain data, for :meth:`of_columns`."""
        return [*(getattr(self, name).tolist() for name in _COLUMNS), indices_of(self.ended_by)]

    @classmethod
    def of(
        cls,
        returns: Sequence[float],
        lengths: Sequence[int],
        seconds: Sequence[float],
        env_ids: Sequence[int],
        ended_by: Sequence[str] | None = None,
    ) -> EpisodeStatistics:
        """Make statistics from any sequences. Default of ``ended_by``: all episodes terminated."""
        given = zip((returns, lengths, seconds, env_ids), _COLUMNS.values(), strict=True)
        columns: list[Any] = [np.asarray(values, dtype) for values, dtype in given]
        columns.append(endings_of(np.zeros(len(columns[0]))) if ended_by is None else np.asarray(ended_by, _TEXT))
        return cls(*columns)

    @classmethod
    def of_columns(
        cls, returns: Any, lengths: Any, seconds: Any, env_ids: Any, ended_by: Any = None
    ) -> EpisodeStatistics:
        """Make statistics from plain data of :meth:`columns`. Data of parenv 0.2.0 does not have ``ended_by``."""
        why = None if ended_by is None else endings_of(ended_by)
        return EpisodeStatistics.of(returns, lengths, seconds, env_ids, why)

    @classmethod
    def joined(cls, parts: Sequence[EpisodeStatistics]) -> EpisodeStatistics:
        """Join the episodes of several parts."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return NO_EPISODES
        columns: list[Any] = [np.concatenate([getattr(part, name) for part in parts]) for name in ALL_COLUMNS]
        return cls(*columns)

    def _only(self, mask: Any) -> Self:
        """Return the episodes at which a mask is true."""
        return replace(self, **{name: getattr(self, name)[mask] for name in ALL_COLUMNS})


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

    def metrics(self) -> dict[str, float]:
        """Return the numbers of the result as a flat dict for a logger, such as ``"eval/mean_return"``."""
        return metrics_of(EVALUATION, self)

    def _facts(self) -> dict[str, Any]:
        about = {"policy_version": self.policy_version, "env_steps": self.env_steps}
        return about | self.episodes._facts()
