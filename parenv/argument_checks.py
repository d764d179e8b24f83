"""Checks of single arguments, with error messages of the same form."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeVar

from parenv.errors import ConfigurationError

T = TypeVar("T")


def instance_of(name: str, value: Any, kind: type[T]) -> T:
    """Return the value if it is an option object of this kind. The error about a dict contains the call to write."""
    if not isinstance(value, kind):
        made = ", ".join(f"{key}={part!r}" for key, part in value.items()) if isinstance(value, dict) else "..."
        raise ConfigurationError(f"{name} must be {kind.__name__}({made}), got {value!r}")
    return value


def options_of(name: str, value: Any, kind: type[T]) -> T:
    """Return the value as :func:`instance_of` does, or an option object with its defaults if it is ``None``."""
    return kind() if value is None else instance_of(name, value, kind)


def one_of(name: str, value: T, allowed: Sequence[object], hint: str = "") -> T:
    """Return the value if it is one of the allowed values."""
    if value not in allowed:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}{hint}")
    return value


def at_least(name: str, value: Any, least: int, hint: str = "") -> int:
    """Return the value as an ``int`` if it is an integer and not too small."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ConfigurationError(f"{name} must be an integer of at least {least}, got {value!r}{hint}")
    return number


def positive(name: str, value: Any, unit: str = "") -> None:
    """Check that a value is a number above 0."""
    if not isinstance(value, Real) or not float(value) > 0:
        raise ConfigurationError(f"{name} must be positive{unit}, got {value!r}")


def number(name: str, value: Any) -> None:
    """Check that a value is a number and not NaN."""
    if not isinstance(value, Real) or value != value:
        raise ConfigurationError(f"{name} must be a number, got {value!r}")


def is_callable(name: str, value: Any, how: str = "callable") -> None:
    """Check that a value is callable or ``None``."""
    if value is not None and not callable(value):
        raise ConfigurationError(f"{name} must be {how}, got {value!r}")
