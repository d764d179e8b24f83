"""Checks of single arguments, which all say in the same words what is wrong."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeVar

from parenv.errors import ConfigurationError

T = TypeVar("T")


def instance_of(name: str, value: Any, kind: type[T]) -> T:
    """The value, unless it is no such option object; the message says what it would be of a dict."""
    if not isinstance(value, kind):
        made = ", ".join(f"{key}={part!r}" for key, part in value.items()) if isinstance(value, dict) else "..."
        raise ConfigurationError(f"{name} must be parenv.{kind.__name__}({made}), got {value!r}")
    return value


def options_of(name: str, value: Any, kind: type[T]) -> T:
    """The value, or where it is ``None`` such an object with what it is by default; see :func:`instance_of`."""
    return kind() if value is None else instance_of(name, value, kind)


def one_of(name: str, value: T, allowed: Sequence[object], hint: str = "") -> T:
    """The value, unless it is not one of a few words."""
    if value not in allowed:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}{hint}")
    return value


def at_least(name: str, value: Any, least: int, hint: str = "") -> int:
    """The value, unless it is no integer, or too small a one."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ConfigurationError(f"{name} must be an integer of at least {least}, got {value!r}{hint}")
    return number


def positive(name: str, value: Any, unit: str = "") -> None:
    """Refuse what is no number above 0."""
    if not isinstance(value, Real) or not float(value) > 0:
        raise ConfigurationError(f"{name} must be positive{unit}, got {value!r}")


def number(name: str, value: Any) -> None:
    """Refuse what is no number, as NaN."""
    if not isinstance(value, Real) or value != value:
        raise ConfigurationError(f"{name} must be a number, got {value!r}")


def is_callable(name: str, value: Any, how: str = "callable") -> None:
    """Refuse what is neither callable nor ``None``."""
    if value is not None and not callable(value):
        raise ConfigurationError(f"{name} must be {how}, got {value!r}")
