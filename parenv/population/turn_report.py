"""What a population says of a turn, and of itself in figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from parenv.experience.episodes import NO_EPISODES, EpisodeStatistics
from parenv.population.evolution import TurnEnded

_OF_STANDING = ("turn", "env_steps", "score", "parent", "ancestor", "error")
_SECONDS = ("switching_seconds", "learning_seconds", "fitness_seconds")


@dataclass(frozen=True)
class Report:
    """One turn of one member.

    Args:
        member: its number.
        turn: how many turns it has had.
        env_steps: that it has learned from in all of them.
        num_steps: that it has learned from in this one.
        score: what it is worth after it; NaN if it died.
        hyperparameters: by which it learned.
        parent: the member whose child it had become before this turn, or ``None`` if it went on from itself.
        ancestor: the member that its weights began with, at the beginning of the population.
        error: what it died of, as text; empty if it lives.
        episodes: by which it was measured.
        mean_return: of the episodes that ended while it learned; NaN if there were none.
        metrics: what ``learn`` returned last.
        switching_seconds: for making it, loading its state and writing that down again.
        learning_seconds: for acting, stepping and ``learn``.
        fitness_seconds: for measuring it.

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
        """As plain data, which :meth:`of_data` takes back."""
        return {**asdict(replace(self, episodes=NO_EPISODES)), "episodes": self.episodes.columns()}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Report:
        """From plain data."""
        return cls(**{**data, "episodes": EpisodeStatistics.of(*data["episodes"])})


def report_of(ended: TurnEnded) -> Report:
    """What is said of a turn that counts."""
    standing, outcome = ended.standing, ended.outcome
    more: dict[str, Any] = {}
    if not outcome.error:
        about = outcome.about
        more = {
            "episodes": EpisodeStatistics.of(*about["episodes"]),
            "mean_return": about["mean_return"],
            "metrics": about["metrics"],
            **dict(zip(_SECONDS, about["seconds"], strict=True)),
        }
    return Report(
        member=ended.member,
        num_steps=outcome.env_steps,
        hyperparameters=dict(standing.hyperparameters),
        **{name: getattr(standing, name) for name in _OF_STANDING},
        **more,
    )


@dataclass(frozen=True)
class PopulationStatistics:
    """What a population has done so far.

    Args:
        env_steps: that members have learned from.
        turns: that have counted.
        copies: members that became the child of another.
        deaths: turns that ended with the death of the member.
        lost_turns: that were cut short with their worker, and done again.
        worker_restarts: how many there were.
        member_bytes: the largest state of a member.
        evolving_seconds: of the driver, for deciding who is copied and for telling workers whose turn it is.
        switching_seconds: of the workers, for making members, loading their states and writing them down.
        learning_seconds: of the workers, for acting, stepping and ``learn``.
        fitness_seconds: of the workers, for measuring.

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
        """With one more turn."""
        seconds = {name: getattr(report, name) for name in _SECONDS}
        return self.plus(env_steps=report.num_steps, turns=1, deaths=bool(report.error), **seconds)

    def plus(self, **more: float) -> PopulationStatistics:
        """With these added."""
        return replace(self, **{name: getattr(self, name) + value for name, value in more.items()})
