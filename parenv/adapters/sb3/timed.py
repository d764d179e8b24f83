"""What a model spends its time on while it learns."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass
class ModelSeconds:
    """Of the driver.

    Args:
        collecting: in ``collect_rollouts``.
        learning: in ``train``.
    """

    collecting: float = 0.0
    learning: float = 0.0


def timed(of: type[Any], seconds: ModelSeconds, **methods: Any) -> type[Any]:
    """A class of models like another one that also counts seconds; its models save as those of the other.

    Args:
        of: the other one.
        seconds: where to count.
        **methods: what else is different.
    """

    def collect_rollouts(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return of.collect_rollouts(self, *args, **kwargs)
        finally:
            seconds.collecting += time.perf_counter() - began

    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return of.train(self, *args, **kwargs)
        finally:
            seconds.learning += time.perf_counter() - began

    named = {"__module__": of.__module__, "__qualname__": of.__qualname__, "__doc__": of.__doc__}
    return type(of.__name__, (of,), {**named, "collect_rollouts": collect_rollouts, "train": train, **methods})
