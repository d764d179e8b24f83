"""Ranges of hyper-parameters: how first values are drawn, and how the values of a copy are changed."""

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
            raise ConfigurationError(f"{self} has no logarithm at low={self.low}: use Uniform, or a positive one")

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
                f"the hyper-parameter {name!r} must be a name with a range, Uniform(low, high) or LogUniform(low, "
                f"high), got {range_!r}"
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
            raise ConfigurationError(f"{whose} has {name}={value!r}, which is outside {ranges[name]}")
    return {name: float(value) for name, value in values.items()}
