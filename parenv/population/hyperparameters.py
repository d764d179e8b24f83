"""What values a hyper-parameter of a population may have, how the first are drawn, and how a child's are changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError


@dataclass(frozen=True)
class _Bounds:
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigurationError(f"{self} must be two finite numbers, the smaller one first")


@dataclass(frozen=True)
class Uniform(_Bounds):
    """A hyper-parameter between two numbers, all alike likely at first.

    A child has its parent's value plus or minus ``perturb`` times the width of the range, within the range.

    Args:
        low: the least value.
        high: the largest.

    >>> Uniform(0, 0.02).perturbed(0.01, 0.2, np.random.default_rng(0))
    0.014
    """

    def sample(self, generator: np.random.Generator) -> float:
        """A value to begin with."""
        return float(generator.uniform(self.low, self.high))

    def perturbed(self, value: float, perturb: float, generator: np.random.Generator) -> float:
        """A child's value."""
        step = perturb * (self.high - self.low)
        return float(np.clip(value + step * generator.choice((-1.0, 1.0)), self.low, self.high))


@dataclass(frozen=True)
class LogUniform(_Bounds):
    """A hyper-parameter between two positive numbers, of which every order of magnitude is alike likely at first.

    A child has its parent's value times ``1 - perturb`` or ``1 + perturb``, within the range.

    Args:
        low: the least value, above 0.
        high: the largest.

    >>> LogUniform(1e-5, 1e-2).perturbed(1e-3, 0.2, np.random.default_rng(0))
    0.0012
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise ConfigurationError(f"{self} has no logarithm at low={self.low}: use Uniform, or a positive one")

    def sample(self, generator: np.random.Generator) -> float:
        """A value to begin with."""
        exponent = generator.uniform(math.log(self.low), math.log(self.high))
        return float(np.clip(math.exp(exponent), self.low, self.high))

    def perturbed(self, value: float, perturb: float, generator: np.random.Generator) -> float:
        """A child's value."""
        return float(np.clip(value * (1.0 + perturb * generator.choice((-1.0, 1.0))), self.low, self.high))


Range = Uniform | LogUniform


def checked_ranges(hyperparameters: Any) -> dict[str, Range]:
    """The ranges by name.

    Raises:
        ConfigurationError: they are none.
    """
    if not isinstance(hyperparameters, Mapping):
        raise ConfigurationError(
            f'hyperparameters must be ranges by name, such as {{"lr": LogUniform(1e-5, 1e-2)}}, got {hyperparameters!r}'
        )
    for name, range_ in hyperparameters.items():
        if not isinstance(name, str) or not isinstance(range_, Range):
            raise ConfigurationError(
                f"the hyper-parameter {name!r} must be a name with a range, Uniform(low, high) or LogUniform(low, "
                f"high), got {range_!r}"
            )
    return dict(hyperparameters)


def check_values(values: Any, ranges: Mapping[str, Range], whose: str) -> dict[str, float]:
    """Values of all hyper-parameters, each in its range.

    Raises:
        ConfigurationError: a name is missing or unknown, or a value is outside.
    """
    if not isinstance(values, Mapping) or values.keys() != ranges.keys():
        raise ConfigurationError(f"{whose} must have values for {', '.join(map(repr, ranges))}, got {values!r}")
    for name, value in values.items():
        if not isinstance(value, int | float) or not ranges[name].low <= value <= ranges[name].high:
            raise ConfigurationError(f"{whose} has {name}={value!r}, which is outside {ranges[name]}")
    return {name: float(value) for name, value in values.items()}
