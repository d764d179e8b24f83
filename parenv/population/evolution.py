"""Whose turn it is, from which place to which, and what comes of it: a pure state machine.

The states of members lie in places. A member's state is written to a free one, and only then is the one before given
up: a turn that is cut short changes nothing and is begun again. To be copied takes nothing: a child's first turn begins
from the place of its parent, which is kept for as long as somebody stands there or is to begin from it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from parenv.envs.seeding import evolution_seed
from parenv.population.evolving import Evolve
from parenv.population.hyperparameters import Range

NOWHERE = -1
MAX_LOST = 3
"""As often in succession may a worker be lost during a member's turn; then it is the member that died."""


@dataclass
class Standing:
    """Where a member stands.

    Args:
        hyperparameters: its values at this time.
        ancestor: the member that its weights began with.
        turn: how many it has had.
        env_steps: that it has learned from itself.
        place: of its state, or :data:`NOWHERE`.
        score: since it was copied, or else ``None``.
        parent: whose child it has become since its last turn, or ``None``.
        error: what it died of in its last turn, or nothing.
        lost: how often in succession its worker was lost.
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


class Turn(NamedTuple):
    """A turn of a member that may begin.

    Args:
        member: whose.
        turn: how many it had before.
        hyperparameters: its values.
        source: the place that it begins from, or :data:`NOWHERE`.
        target: the place for what comes of it.
    """

    member: int
    turn: int
    hyperparameters: dict[str, float]
    source: int
    target: int


class TurnOutcome(NamedTuple):
    """What came of a turn.

    Args:
        score: NaN for a member that died.
        env_steps: that it learned from.
        error: what it died of, or nothing.
        about: whatever else is to be reported.
    """

    score: float
    env_steps: int
    error: str = ""
    about: Any = None


class TurnEnded(NamedTuple):
    """A turn that counts, and where the member stands after it."""

    member: int
    standing: Standing
    outcome: TurnOutcome


class Copied(NamedTuple):
    """A member has become the child of another.

    Args:
        member: the child.
        turn: how many turns it has had.
        score: for which it is replaced.
        parent: the other.
        parent_turn: how many turns that one has had.
        parent_score: for which it is copied.
        inherited: the parent's hyper-parameters.
        hyperparameters: the child's.
    """

    member: int
    turn: int
    score: float
    parent: int
    parent_turn: int
    parent_score: float
    inherited: dict[str, float]
    hyperparameters: dict[str, float]


class Evolution:
    """The members of a population.

    Args:
        evolve: who becomes whose child.
        ranges: of the hyper-parameters.
        first: those of each member at the beginning.
        seed: root of all seeds.
        in_order: whether turns count in the order in which they began, so that it does not matter who is faster.

    Attributes:
        members: where each stands.
        num_places: one for each member, and for each turn that may be under way.
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
        self._begun: dict[int, Turn] = {}
        self._again: deque[int] = deque()
        self._arrived: dict[int, TurnOutcome] = {}
        self._due: list[int] = []
        self._held = Counter[int]()

    def next(self) -> Turn | None:
        """Begin the next turn, if there is one that may begin."""
        if self._again:
            return self._begun[self._again.popleft()]
        if not self._waiting:
            return None
        member = self._waiting.popleft()
        one = self.members[member]
        target = next(place for place in range(self.num_places) if not self._held[place])
        turn = Turn(member, one.turn, dict(one.hyperparameters), one.place, target)
        self._begun[member] = turn
        self._held.update((turn.source, turn.target))
        return turn

    def lost(self, member: int, blamed: bool = True) -> bool:
        """The worker with a member's turn is gone: it is begun again, unless that may be its doing too often."""
        one = self.members[member]
        one.lost += blamed
        if one.lost < MAX_LOST:
            self._again.append(member)
        return one.lost < MAX_LOST

    def done(self, member: int, outcome: TurnOutcome) -> list[TurnEnded | Copied]:
        """A turn is over; what follows from it, and from others that had to wait for it."""
        self._arrived[member] = outcome
        if not self._in_order:
            return self._counted(member)
        found: list[TurnEnded | Copied] = []
        while self._begun and (first := next(iter(self._begun))) in self._arrived:
            found += self._counted(first)
        return found

    @property
    def all_died(self) -> bool:
        """Whether the last turn of every member ended with its death."""
        return all(one.error for one in self.members)

    @property
    def scores(self) -> dict[int, float]:
        """Of the members that have been measured since they were copied."""
        return {number: one.score for number, one in enumerate(self.members) if one.score is not None}

    @property
    def best(self) -> int | None:
        """The member with the highest score, if anybody has one."""
        numbers = {member: score for member, score in self.scores.items() if not math.isnan(score)}
        return max(numbers, key=numbers.__getitem__, default=None)

    def state(self) -> dict[str, Any]:
        """As plain data. Turns under way are not part of it: they begin again, and come to the same."""
        order = [*self._begun, *self._waiting]
        return {"members": [asdict(one) for one in self.members], "order": order, "due": list(self._due)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where another one was, before any turn has begun here."""
        self.members = [Standing(**one) for one in state["members"]]
        self._waiting, self._due = deque(state["order"]), list(state["due"])
        self._held = Counter(one.place for one in self.members)

    def _counted(self, member: int) -> list[TurnEnded | Copied]:
        turn, outcome, one = self._begun.pop(member), self._arrived.pop(member), self.members[member]
        one.turn += 1
        one.env_steps += outcome.env_steps
        one.score, one.error, one.lost = outcome.score, outcome.error, 0
        if not outcome.error:
            self._move(one, turn.target)
        self._held.subtract((turn.source, turn.target))
        ended = TurnEnded(member, replace(one), outcome)
        one.parent = None
        return [ended, *self._evolved(member)]

    def _evolved(self, member: int) -> list[TurnEnded | Copied]:
        """Who is replaced now that a member has had its turn, or all have; they may all have another."""
        self._due.append(member)
        if self._evolve.all_at_once and len(self._due) < len(self.members):
            return []
        due, self._due = sorted(self._due), []
        self._waiting.extend(due)
        # Not of who is the last of a generation, which depends on who is faster.
        generator = np.random.default_rng(evolution_seed(self._seed, due[0], self.members[due[0]].turn))
        if any(not one.turn for one in self.members):
            return []  # The first of all would be chosen from a few, and be the ancestors of all.
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
