"""Reports of training rounds, and their schedule: a pure state machine of members and of the places of their states.

A training round reads the member's state from one place and writes the new state to a free one. The member keeps the
old place until the round is done, so a round that is lost changes nothing and is repeated. A copy takes no time: its
first training round reads the state from its parent's place, which stays reserved meanwhile.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from parenv.envs.seeding import evolution_seed
from parenv.experience.episodes import NO_EPISODES, EpisodeStatistics
from parenv.experience.metrics import POPULATION, metrics_of
from parenv.population.selection import Evolve, Range

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

    >>> from parenv import Population
    >>> from parenv.population import LogUniform, Member, Tournament
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
        return cls(**{**data, "episodes": EpisodeStatistics.of_columns(*data["episodes"])})


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
        best_score: Highest score of a member, NaN without any.
        mean_score: Mean score of the members that have been measured since they were copied, NaN without any.

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
    best_score: float = math.nan
    mean_score: float = math.nan

    def metrics(self) -> dict[str, float]:
        """Return the statistics as a flat dict, see :meth:`parenv.AsyncWorkerPool.metrics`."""
        return metrics_of(POPULATION, self)

    def after(self, report: Report) -> PopulationStatistics:
        """Return the statistics after one more training round."""
        seconds = {name: getattr(report, name) for name in SECONDS}
        return self.plus(env_steps=report.num_steps, turns=1, deaths=bool(report.error), **seconds)

    def plus(self, **more: float) -> PopulationStatistics:
        """Return the statistics with some numbers added."""
        return replace(self, **{name: getattr(self, name) + value for name, value in more.items()})


NOWHERE = -1
MAX_LOST = 3
"""Number of workers that may be lost in succession in a member's training round before the member counts as dead."""


@dataclass
class Standing:
    """The present state of a member.

    Args:
        hyperparameters: Hyper-parameters.
        ancestor: Member whose first weights its weights descend from.
        turn: Number of finished training rounds.
        env_steps: Env steps that it has learned from.
        place: Place of its state, or :data:`NOWHERE`.
        score: Score since it was copied, or ``None``.
        parent: Member that it was copied from since its last training round, or ``None``.
        error: Exception that it died of in its last training round, or an empty text.
        lost: Number of workers that were lost with it in succession.
    """

    hyperparameters: dict[str, float]
    ancestor: int
    turn: int = 0
    env_steps: int = 0
    place: int = NOWHERE
    score: float | None = None
    parent: int | None = None
    error: str = ""
    lost: int = 0


class TrainingRound(NamedTuple):
    """A training round that may begin.

    Args:
        member: Member that learns.
        turn: Number of training rounds that it has finished before.
        hyperparameters: Its hyper-parameters.
        source: Place of the state that it begins with, or :data:`NOWHERE`.
        target: Place for its new state.
    """

    member: int
    turn: int
    hyperparameters: dict[str, float]
    source: int
    target: int


class Outcome(NamedTuple):
    """The result of a training round.

    Args:
        score: Score. NaN if the member died.
        env_steps: Env steps that it learned from.
        error: Exception that it died of, or an empty text.
        about: More attributes of the report.
    """

    score: float
    env_steps: int
    error: str = ""
    about: Mapping[str, Any] = {}


class Copied(NamedTuple):
    """The replacement of a member by a copy of another.

    Args:
        member: Member that is replaced.
        turn: Number of training rounds that it has finished.
        score: Score for which it is replaced.
        parent: Member that is copied.
        parent_turn: Number of training rounds that the parent has finished.
        parent_score: Score for which the parent is copied.
        inherited: Hyper-parameters of the parent.
        hyperparameters: Hyper-parameters of the copy.
    """

    member: int
    turn: int
    score: float
    parent: int
    parent_turn: int
    parent_score: float
    inherited: dict[str, float]
    hyperparameters: dict[str, float]


class Schedule:
    """The members of a population and their next training rounds.

    Args:
        evolve: Selection.
        ranges: Ranges of the hyper-parameters.
        first: Hyper-parameters of each member at the start.
        seed: Root of all seeds.
        in_order: Whether training rounds count in the order in which they began, so that results do not depend on the
            speed of workers.

    Attributes:
        members: State of each member.
        num_places: Number of places: one for each member, and one for each training round in progress.
    """

    def __init__(
        self,
        evolve: Evolve,
        ranges: Mapping[str, Range],
        first: Sequence[Mapping[str, float]],
        seed: int,
        in_order: bool,
    ) -> None:
        self._evolve, self._ranges, self._seed, self._in_order = evolve, ranges, seed, in_order
        self.members = [Standing(dict(values), member) for member, values in enumerate(first)]
        self.num_places = 2 * len(self.members)
        self._waiting = deque(range(len(self.members)))
        self._begun: dict[int, TrainingRound] = {}
        self._again: deque[int] = deque()
        self._arrived: dict[int, Outcome] = {}
        self._due: list[int] = []
        self._held = Counter[int]()

    def next(self) -> TrainingRound | None:
        """Begin the next training round, or return ``None`` if no member may begin one."""
        if self._again:
            return self._begun[self._again.popleft()]
        if not self._waiting:
            return None
        member = self._waiting.popleft()
        one = self.members[member]
        target = next(place for place in range(self.num_places) if not self._held[place])
        begun = TrainingRound(member, one.turn, dict(one.hyperparameters), one.place, target)
        self._begun[member] = begun
        self._held.update((begun.source, begun.target))
        return begun

    def lost(self, member: int, blamed: bool = True) -> bool:
        """Note that the worker of a training round is gone.

        Args:
            member: Member that learned.
            blamed: Whether the member may be the cause.

        Returns:
            Whether the round is repeated. If not, the member has lost too many workers and counts as dead.
        """
        one = self.members[member]
        one.lost += blamed
        if one.lost < MAX_LOST:
            self._again.append(member)
        return one.lost < MAX_LOST

    def done(self, member: int, outcome: Outcome) -> list[Report | Copied]:
        """End a training round, and return all events that follow, of rounds that had to wait for it too."""
        self._arrived[member] = outcome
        if not self._in_order:
            return self._counted(member)
        found: list[Report | Copied] = []
        while self._begun and (first := next(iter(self._begun))) in self._arrived:
            found += self._counted(first)
        return found

    @property
    def all_died(self) -> bool:
        """Whether every member died in its last training round."""
        return all(one.error for one in self.members)

    @property
    def scores(self) -> dict[int, float]:
        """Scores of the members that have been measured since they were copied."""
        return {number: one.score for number, one in enumerate(self.members) if one.score is not None}

    @property
    def best(self) -> int | None:
        """Member with the highest score, or ``None`` if no member has one."""
        numbers = {member: score for member, score in self.scores.items() if not math.isnan(score)}
        return max(numbers, key=numbers.__getitem__, default=None)

    def state(self) -> dict[str, Any]:
        """Return plain data for :meth:`load`. Training rounds in progress are repeated after it."""
        order = [*self._begun, *self._waiting]
        return {"members": [asdict(one) for one in self.members], "order": order, "due": list(self._due)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another schedule, before any training round has begun."""
        self.members = [Standing(**one) for one in state["members"]]
        self._waiting, self._due = deque(state["order"]), list(state["due"])
        self._held = Counter(one.place for one in self.members)

    def _counted(self, member: int) -> list[Report | Copied]:
        begun, outcome, one = self._begun.pop(member), self._arrived.pop(member), self.members[member]
        one.turn += 1
        one.env_steps += outcome.env_steps
        one.score, one.error, one.lost = outcome.score, outcome.error, 0
        if not outcome.error:
            self._move(one, begun.target)
        self._held.subtract((begun.source, begun.target))
        report = Report(
            member=member,
            turn=one.turn,
            env_steps=one.env_steps,
            num_steps=outcome.env_steps,
            score=outcome.score,
            hyperparameters=begun.hyperparameters,
            parent=one.parent,
            ancestor=one.ancestor,
            error=outcome.error,
            **outcome.about,
        )
        one.parent = None
        return [report, *self._selected(member)]

    def _selected(self, member: int) -> list[Report | Copied]:
        """Replace members after a training round of one or of all. They may then begin another one."""
        self._due.append(member)
        if self._evolve.all_at_once and len(self._due) < len(self.members):
            return []
        due, self._due = sorted(self._due), []
        self._waiting.extend(due)
        # The last member of a generation depends on the speed of workers, so the seed uses the first.
        generator = np.random.default_rng(evolution_seed(self._seed, due[0], self.members[due[0]].turn))
        if any(not one.turn for one in self.members):
            return []  # Otherwise the first members to finish would be the ancestors of all.
        scores = self.scores
        parents = self._evolve.parents(due, scores, generator)
        return [self._copied(child, parent, scores, generator) for child, parent in parents.items()]

    def _copied(self, child: int, parent: int, scores: Mapping[int, float], generator: np.random.Generator) -> Copied:
        mine, theirs = self.members[child], self.members[parent]
        inherited = dict(theirs.hyperparameters)
        values = {name: self._changed(name, value, generator) for name, value in inherited.items()}
        copied = Copied(child, mine.turn, scores[child], parent, theirs.turn, scores[parent], inherited, values)
        self._move(mine, theirs.place)
        mine.hyperparameters, mine.ancestor, mine.parent = dict(values), theirs.ancestor, parent
        mine.score, mine.error = None, ""
        return copied

    def _changed(self, name: str, value: float, generator: np.random.Generator) -> float:
        range_ = self._ranges[name]
        if generator.random() < self._evolve.resample:
            return range_.sample(generator)
        return range_.perturbed(value, self._evolve.perturb, generator)

    def _move(self, one: Standing, place: int) -> None:
        self._held[place] += 1
        self._held[one.place] -= 1
        one.place = place
