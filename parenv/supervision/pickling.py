"""Pickles for the workers, and messages about objects that cannot be pickled."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Mapping
from typing import Any

import cloudpickle

from parenv.errors import NotPicklableError
from parenv.process.user_code import dumps

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
                raise NotPicklableError(
                    f"{where} cannot be sent to a worker process: {error}. Create it inside the factory or in "
                    "setup_fn, or use num_workers=0."
                ) from error
        raise NotPicklableError(f"the arguments cannot be sent to a worker process: {error}") from error


def find_unpicklable(value: Any, where: str, above: tuple[Any, ...] = ()) -> str | None:
    """Return the innermost part that cannot be pickled, such as ``env_fn, variable 'lock' (_thread.lock)``."""
    with contextlib.suppress(Exception):
        cloudpickle.dumps(value)
        return None
    if len(above) < MAX_DEPTH:
        for name, part in _parts(value).items():
            if not any(part is one for one in (*above, value)):
                found = find_unpicklable(part, f"{where}, {name}", (*above, value))
                if found is not None:
                    return found
    return f"{where} ({type(value).__module__}.{type(value).__qualname__})"


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
