"""Pickles for the workers, and messages about objects that cannot be pickled."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Mapping
from typing import Any

from parenv.errors import NotPicklableError, embedded
from parenv.process.user_code import dumps, is_shared_by_inheritance

MAX_DEPTH = 6


def pickled(named: Mapping[str, Any], whole: Any) -> bytes:
    """Pickle an object whose parts have these names.

    Raises:
        NotPicklableError: The message names the part, and the object in it, that cannot be pickled.
    """
    try:
        return dumps(whole)
    except Exception as error:
        for name, part in named.items():
            where = find_unpicklable(part, name)
            if where is not None:
                otherwise = "Create it inside the factory or in setup_fn"
                if name == "policy":
                    otherwise = "Pass PolicyFactory(make) with a function that creates it on each worker"
                raise NotPicklableError(
                    f"{where[0]} cannot be sent to a worker process: {embedded(error)}. "
                    f"{way_out(where[1], otherwise)}, or use num_workers=0."
                ) from error
        raise NotPicklableError(f"the arguments cannot be sent to a worker process: {error}") from error


def find_unpicklable(value: Any, where: str, above: tuple[Any, ...] = ()) -> tuple[str, Any] | None:
    """Return the innermost part that cannot be pickled, as a text and itself.

    The text names the part and its type, such as ``env_fn, variable 'lock' (_thread.lock)``. The parts of an object
    that processes share are internals of :mod:`multiprocessing`, and are not named.
    """
    with contextlib.suppress(Exception):
        dumps(value)
        return None
    if len(above) < MAX_DEPTH and not is_shared_by_inheritance(value):
        for name, part in _parts(value).items():
            if not any(part is one for one in (*above, value)):
                found = find_unpicklable(part, f"{where}, {name}", (*above, value))
                if found is not None:
                    return found
    return f"{where} ({type(value).__module__}.{type(value).__qualname__})", value


def way_out(value: Any, otherwise: str) -> str:
    """Return what to do with an object that cannot be pickled: another text unless a manager has such objects."""
    if not is_shared_by_inheritance(value):
        return otherwise
    kind = type(value).__name__
    method = next((method for name, method in _OF_A_MANAGER.items() if name in kind), "Value")
    return f"Share a multiprocessing.Manager().{method}(...) instead"


_OF_A_MANAGER = {
    "SimpleQueue": "Queue",
    "JoinableQueue": "JoinableQueue",
    "Queue": "Queue",
    "Connection": "Queue",
    "BoundedSemaphore": "BoundedSemaphore",
    "Semaphore": "Semaphore",
    "Condition": "Condition",
    "Event": "Event",
    "Barrier": "Barrier",
    "RLock": "RLock",
    "Lock": "Lock",
    "Array": "Array",
    "SynchronizedString": "Array",
}
"""Method of a manager by a part of the name of a class, the longer names first."""


def _parts(value: Any) -> dict[str, Any]:
    if isinstance(value, functools.partial):
        return {"function": value.func, **_parts(list(value.args)), **_parts(value.keywords)}
    if isinstance(value, types.MethodType):
        return {"self": value.__self__}
    if isinstance(value, types.FunctionType):
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=False))
        parts = {f"variable {name!r}": cell.cell_contents for name, cell in cells.items() if cell != types.CellType()}
        names = [name for name in value.__code__.co_names if name in value.__globals__]
        return parts | {f"global {name!r}": value.__globals__[name] for name in names}
    if isinstance(value, dict):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{i}]": part for i, part in enumerate(value)}
    return {f"attribute {name!r}": part for name, part in getattr(value, "__dict__", {}).items()}
