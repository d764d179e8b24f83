"""Selection of the members that are replaced and of their parents: pure decisions by the scores of members."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from parenv.argument_checks import at_least
from parenv.errors import ConfigurationError

Scores = Mapping[int, float]
"""Scores by member, of members that have been measured since they were copied."""


@dataclass(frozen=True)
class Tournament:
    """Selection after each training round: a member is compared with others, and replaced if one has a higher score.

    It becomes a copy of the best member that it was compared with. Comparisons begin when all members have finished a
    training round. Equal scores change nothing. Every number is higher than NaN, the score of a member that died.

    Args:
        size: Number of other members to compare with, drawn from the members with a score.
        every: Least number of env steps in a training round, which consists of whole rollouts.
        perturb: Change of a copy's hyper-parameters, see :class:`~parenv.Uniform` and :class:`~parenv.LogUniform`.
        resample: Probability that a copy draws a new value of a hyper-parameter instead.

    >>> Tournament(size=3, every=50_000, perturb=0.2).parents([0], {0: 1.0, 1: 5.0, 2: 3.0}, np.random.default_rng(0))
    {0: 1}
    """

    size: int = 3
    every: int = 50_000
    perturb: float = 0.2
    resample: float = 0.0
    all_at_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(self)
        at_least("Tournament.size", self.size, 1)

    def check_fits(self, size: int) -> None:
        """Check that a population is large enough.

        Raises:
            ConfigurationError: It is not.
        """
        if self.size >= size:
            raise ConfigurationError(
                f"in a population of {size} a member cannot meet Tournament.size={self.size} others: use at most "
                f"size={size - 1}"
            )

    def parents(self, due: Sequence[int], scores: Scores, generator: np.random.Generator) -> dict[int, int]:
        """Return the parent of each member that is replaced.

        Args:
            due: Members that have finished a training round.
            scores: Scores of all members that have one.
            generator: Random generator.
        """
        found = {}
        for member in due:
            others = [other for other, score in sorted(scores.items()) if other != member and not math.isnan(score)]
            if others:
                met = generator.choice(others, min(self.size, len(others)), replace=False).tolist()
                best = max(met, key=lambda other: scores[other])
                if _beats(scores[best], scores[member]):
                    found[member] = best
        return found


@dataclass(frozen=True)
class Generational:
    """Selection by generations: after a training round of all members, copies of the better ones replace the worse.

    A member is only replaced by a copy of a member with a higher score. Members with the score NaN, such as members
    that died, are replaced even beyond the fraction, and are never parents.

    Args:
        every: Least number of env steps in a training round, which consists of whole rollouts.
        fraction: Fraction of the population that is replaced, and that parents are drawn from. At most a half.
        perturb: Change of a copy's hyper-parameters, see :class:`~parenv.Uniform` and :class:`~parenv.LogUniform`.
        resample: Probability that a copy draws a new value of a hyper-parameter instead.

    >>> Generational(fraction=0.5).parents([0, 1], {0: 1.0, 1: 2.0}, np.random.default_rng(0))
    {0: 1}
    """

    every: int = 50_000
    fraction: float = 0.2
    perturb: float = 0.2
    resample: float = 0.0
    all_at_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self)
        if not 0.0 < self.fraction <= 0.5:
            raise ConfigurationError(f"Generational.fraction must be above 0 and at most 0.5, got {self.fraction!r}")

    def check_fits(self, size: int) -> None:
        """Check that a population is large enough.

        Raises:
            ConfigurationError: It is not.
        """
        if not int(self.fraction * size + 1e-9):
            raise ConfigurationError(
                f"Generational.fraction={self.fraction:g} of a population of {size} is nobody: use at least "
                f"{1 / size:.3g}"
            )

    def parents(self, due: Sequence[int], scores: Scores, generator: np.random.Generator) -> dict[int, int]:
        """Return the parent of each member that is replaced.

        Args:
            due: All members.
            scores: Scores of all members.
            generator: Random generator.
        """
        count = int(self.fraction * len(due) + 1e-9)
        worthless = [member for member in sorted(due) if math.isnan(scores[member])]
        ranked = sorted((m for m in due if not math.isnan(scores[m])), key=lambda m: (scores[m], m))
        best, worst = ranked[-count:], [*worthless, *ranked[: max(0, count - len(worthless))]]
        found = {}
        for member in worst if best else []:
            parent = int(generator.choice(best))
            if _beats(scores[parent], scores[member]):
                found[member] = parent
        return found


Evolve = Tournament | Generational


def _beats(score: float, other: float) -> bool:
    return score > other or (math.isnan(other) and not math.isnan(score))


def _check(evolve: Any) -> None:
    kind = type(evolve).__name__
    at_least(f"{kind}.every", evolve.every, 1)
    if not 0.0 < evolve.perturb < 1.0:
        raise ConfigurationError(f"{kind}.perturb must be between 0 and 1, got {evolve.perturb!r}")
    if not 0.0 <= evolve.resample <= 1.0:
        raise ConfigurationError(f"{kind}.resample must be a probability, got {evolve.resample!r}")
