"""Reports of training rounds, and the statistics of a population."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from parenv.experience.episodes import NO_EPISODES, EpisodeStatistics

SECONDS = ("switching_seconds", "learning_seconds", "fitness_seconds")


@dataclass(frozen=True)
class Report:
    """One training round of one member.

    Args:
        member: Number of the member.
        turn: Number of training rounds that the member has finished.
        env_steps: Env steps that the member has learned from in all training rounds.
        num_steps: Env steps that the member has learned from in this training round.
        score: Score after the training round. NaN if the member died.
        hyperparameters: Hyper-parameters in this training round.
        parent: Member that it was copied from before this training round, or ``None`` if it was not copied.
        ancestor: Member whose first weights its weights descend from.
        error: Exception that the member died of, as text. Empty if it lives.
        episodes: Episodes by which it was measured.
        mean_return: Mean return of the episodes that ended while it learned. NaN without such episodes.
        metrics: Last result of ``learn``.
        switching_seconds: Seconds for making the member, and for reading and writing its state.
        learning_seconds: Seconds for acting, stepping and ``learn``.
        fitness_seconds: Seconds for measuring.

    >>> from parenv import LogUniform, Member, Population, Tournament
    >>> def make_member(hyperparameters):
    ...     return Member(lambda observations: observations[:, 2] > 0)
    >>> population = Population("CartPole-v1", make_member, lambda member, rollout: None, size=2, num_workers=0,
    ...                         hyperparameters={"lr": LogUniform(1e-4, 1e-2)}, evolve=Tournament(size=1, every=64))
    >>> with population:
    ...     report = next(population.reports())
    >>> report.member, report.turn, len(report.episodes), report.parent
    (0, 1, 10, None)
    """

    member: int
    turn: int
    env_steps: int
    num_steps: int
    score: float
    hyperparameters: Mapping[str, float]
    parent: int | None
    ancestor: int
    error: str = ""
    episodes: EpisodeStatistics = NO_EPISODES
    mean_return: float = float("nan")
    metrics: Mapping[str, float] | None = None
    switching_seconds: float = 0.0
    learning_seconds: float = 0.0
    fitness_seconds: float = 0.0

    def as_data(self) -> dict[str, Any]:
        """Return plain data for :meth:`of_data`."""
        return {**asdict(replace(self, episodes=NO_EPISODES)), "episodes": self.episodes.columns()}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Report:
        """Make a report from plain data."""
        return cls(**{**data, "episodes": EpisodeStatistics.of(*data["episodes"])})


@dataclass(frozen=True)
class PopulationStatistics:
    """Statistics of a population since its start.

    Args:
        env_steps: Env steps that members have learned from.
        turns: Number of finished training rounds.
        copies: Number of members that were replaced by a copy of another.
        deaths: Number of training rounds in which the member died.
        lost_turns: Number of training rounds that were lost with their worker, and repeated.
        worker_restarts: Number of restarts of workers.
        member_bytes: Size of the largest state of a member, in bytes.
        evolving_seconds: Seconds of the main process for selection and for requests of training rounds.
        switching_seconds: Seconds of the workers for making members, and for reading and writing their states.
        learning_seconds: Seconds of the workers for acting, stepping and ``learn``.
        fitness_seconds: Seconds of the workers for measuring.

    >>> PopulationStatistics(env_steps=640, turns=10).copies
    0
    """

    env_steps: int = 0
    turns: int = 0
    copies: int = 0
    deaths: int = 0
    lost_turns: int = 0
    worker_restarts: int = 0
    member_bytes: int = 0
    evolving_seconds: float = 0.0
    switching_seconds: float = 0.0
    learning_seconds: float = 0.0
    fitness_seconds: float = 0.0

    def after(self, report: Report) -> PopulationStatistics:
        """Return the statistics after one more training round."""
        seconds = {name: getattr(report, name) for name in SECONDS}
        return self.plus(env_steps=report.num_steps, turns=1, deaths=bool(report.error), **seconds)

    def plus(self, **more: float) -> PopulationStatistics:
        """Return the statistics with some numbers added."""
        return replace(self, **{name: getattr(self, name) + value for name, value in more.items()})
