"""Hints in a ``TypeError`` at the option object that has a misplaced argument."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, cast

from parenv.options import GradientOptions, Stop, WorkerOptions

F = TypeVar("F", bound=Callable[..., Any])
_OPTION_OBJECTS: dict[str, str] = {
    "caller_steps": "It is an argument of ParallelVectorEnv; for a pool, pass workers=WorkerOptions(step_workers=...)",
    **{
        field.name: f"Pass {where}({field.name}=...)"
        for kind, where in (
            (WorkerOptions, "workers=WorkerOptions"),
            (GradientOptions, "gradient=GradientOptions"),
            (Stop, "Stop"),
        )
        for field in fields(kind)
    },
}


def names_option_objects(function: F) -> F:
    """Have the ``TypeError`` of a function name the option object that has the keyword argument."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in signature.parameters and name in _OPTION_OBJECTS:
                raise TypeError(
                    f"{function.__qualname__}() got an unexpected keyword argument {name!r}. {_OPTION_OBJECTS[name]}"
                )
        return function(*args, **kwargs)

    return cast(F, checked)
