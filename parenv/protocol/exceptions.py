"""Exceptions of another process, rebuilt from the name of their class, a text and attributes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

from parenv.errors import SubEnvironmentError

_E = TypeVar("_E", bound=BaseException)


def rebuilt_error(kind: Sequence[str], message: str, trace: str, attributes: Mapping[str, Any]) -> Exception:
    """Return an exception of another interpreter, with its traceback as the cause.

    If this process does not have its class, a class of the same name takes its place.
    """
    module, name = kind
    found = find_exception(kind, attributes)
    if found is None or (found.__module__, found.__qualname__) != (module, name):
        found = type(name, (found or Exception,), {"__module__": module, "__qualname__": name})
    error = make_exception(found, message, attributes)
    error.args = (message,)
    error.__cause__ = SubEnvironmentError("in another interpreter", remote_traceback=trace)
    return error


def find_exception(kind: Sequence[Any], attributes: Mapping[str, Any]) -> type[Exception] | None:
    """Find a class by module and name, or the nearest of its bases that can be made from a text and attributes.

    Returns:
        The class, or ``None`` if this process has not imported it.
    """
    module, name = kind
    # The module is only looked up. An import would run code that the worker chooses.
    found: Any = sys.modules.get(str(module))
    for part in str(name).split("."):
        # getattr could import a module or run a descriptor, at the wish of the worker that names the type.
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    bases = [base for base in found.__mro__ if issubclass(base, Exception) and (base is not Exception or base is found)]
    return next((base for base in bases if _can_be_made(base, attributes)), None)


def _can_be_made(kind: type[Exception], attributes: Mapping[str, Any]) -> bool:
    try:
        str(make_exception(kind, "", attributes))
    except Exception:
        return issubclass(kind, SubEnvironmentError)
    return True


def make_exception(kind: type[Exception], message: str, attributes: Mapping[str, Any]) -> Exception:
    """Make an exception from a text and attributes."""
    # __init__ is not called, because it may need other arguments than a message.
    error = new_exception(kind, message)
    vars(error).update(attributes)
    return error


def new_exception(kind: type[_E], *args: Any) -> _E:
    """Return an exception without a call of ``__init__``."""
    try:
        return kind.__new__(kind, *args)
    except TypeError:
        # Python refuses MemoryError.__new__ for a class that has MemoryError as its second base.
        return Exception.__new__(kind, *args)
