"""Evolution of a population: ranges of hyper-parameters, and the selection of replaced members and their parents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from parenv.argument_checks import at_least
from parenv.errors import ConfigurationError


@dataclass(frozen=True)
class _Bounds:
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigurationError(
                f"the bounds of {type(self).__name__} must be two finite numbers, the smaller one first, got "
                f"{self.low!r} and {self.high!r}"
            )


@dataclass(frozen=True)
class Uniform(_Bounds):
    """A hyper-parameter between two numbers, with a uniform distribution of first values.

    A copy has its parent's value plus or minus ``perturb`` times the width of the range, within the range.

    Args:
        low: Smallest value.
        high: Largest value.

    >>> Uniform(0, 0.02).perturbed(0.01, 0.2, np.random.default_rng(0))
    0.014
    """

    def sample(self, generator: np.random.Generator) -> float:
        """Draw a first value."""
        return float(generator.uniform(self.low, self.high))

    def perturbed(self, value: float, perturb: float, generator: np.random.Generator) -> float:
        """Return the value of a copy."""
        step = perturb * (self.high - self.low)
        return float(np.clip(value + step * generator.choice((-1.0, 1.0)), self.low, self.high))


@dataclass(frozen=True)
class LogUniform(_Bounds):
    """A hyper-parameter between two positive numbers, with a uniform distribution of its logarithm at first.

    A copy has its parent's value times ``1 - perturb`` or ``1 + perturb``, within the range.

    Args:
        low: Smallest value, above 0.
        high: Largest value.

    >>> LogUniform(1e-5, 1e-2).perturbed(1e-3, 0.2, np.random.default_rng(0))
    0.0012
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise ConfigurationError(f"LogUniform.low must be positive, got {self.low!r}. Raise it, or use Uniform.")

    def sample(self, generator: np.random.Generator) -> float:
        """Draw a first value."""
        exponent = generator.uniform(math.log(self.low), math.log(self.high))
        return float(np.clip(math.exp(exponent), self.low, self.high))

    def perturbed(self, value: float, perturb: float, generator: np.random.Generator) -> float:
        """Return the value of a copy."""
        return float(np.clip(value * (1.0 + perturb * generator.choice((-1.0, 1.0))), self.low, self.high))


Range = Uniform | LogUniform


def checked_ranges(hyperparameters: Any) -> dict[str, Range]:
    """Check ranges by name.

    Raises:
        ConfigurationError: One of them is not a range.
    """
    if not isinstance(hyperparameters, Mapping):
        raise ConfigurationError(
            f'hyperparameters must be ranges by name, such as {{"lr": LogUniform(1e-5, 1e-2)}}, got {hyperparameters!r}'
        )
    for name, range_ in hyperparameters.items():
        if not isinstance(name, str) or not isinstance(range_, Range):
            raise ConfigurationError(
                "hyperparameters must map names to ranges, Uniform(low, high) or LogUniform(low, high), got "
                f"{name!r}: {range_!r}"
            )
    return dict(hyperparameters)


def check_values(values: Any, ranges: Mapping[str, Range], whose: str) -> dict[str, float]:
    """Check that there is a value for each hyper-parameter, within its range.

    Raises:
        ConfigurationError: A name is missing or unknown, or a value is outside its range.
    """
    if not isinstance(values, Mapping) or values.keys() != ranges.keys():
        raise ConfigurationError(f"{whose} must have values for {', '.join(map(repr, ranges))}, got {values!r}")
    for name, value in values.items():
        if not isinstance(value, int | float) or not ranges[name].low <= value <= ranges[name].high:
            raise ConfigurationError(f"{whose}[{name!r}] must be within {ranges[name]}, got {value!r}")
    return {name: float(value) for name, value in values.items()}


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
        perturb: Change of a copy's hyper-parameters, see :class:`~parenv.population.Uniform` and
            :class:`~parenv.population.LogUniform`.
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
                f"Tournament.size must be at most {size - 1} in a population of {size}, because a member is compared "
                f"with others, got {self.size}"
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
        perturb: Change of a copy's hyper-parameters, see :class:`~parenv.population.Uniform` and
            :class:`~parenv.population.LogUniform`.
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
                f"Generational.fraction must be at least {1 / size:.3g} in a population of {size} to select a member, "
                f"got {self.fraction:g}"
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
        raise ConfigurationError(f"{kind}.resample must be a probability from 0 to 1, got {evolve.resample!r}")
