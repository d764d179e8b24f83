"""What a model spends its time on while it learns."""

from __future__ import annotations

import time
from typing import Any


def timed(of: type[Any], seconds: dict[str, float], **methods: Any) -> type[Any]:
    """A class of models like another one that also counts seconds; its models save as those of the other.

    Args:
        of: the other one.
        seconds: where to count, by the name of each method that is to be counted.
        **methods: what else is different.
    """

    def counted(name: str) -> Any:
        done = methods.get(name) or getattr(of, name)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return done(self, *args, **kwargs)
            finally:
                seconds[name] += time.perf_counter() - began

        return method

    named = {"__module__": of.__module__, "__qualname__": of.__qualname__, "__doc__": of.__doc__}
    return type(of.__name__, (of,), {**named, **methods, **{name: counted(name) for name in seconds}})
