"""A call to several workers whose answers are awaited."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

NO_WEIGHTS = (-1, -1)


@dataclass(eq=False)
class OpenCall:
    """Call to several workers at once.

    Args:
        method: Method as in :class:`~parenv.protocol.messages.Call`.
        arguments: Arguments by worker.
        weights: Version that the method uses, and the place of its weights.
        heard: Function that is called with each answer to the call. Default: none.

    Attributes:
        numbers: Number of the message by worker, for each worker that was called.
        answers: Answers by worker.
        errors: Exceptions by worker. They come before the answer, which is then ``None``.
    """

    method: str
    arguments: Mapping[int, tuple[Any, ...]]
    weights: tuple[int, int] = NO_WEIGHTS
    heard: Callable[[], object] = lambda: None
    numbers: dict[int, int] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, list[BaseException]] = field(default_factory=dict)

    @property
    def is_answered(self) -> bool:
        """True if all workers have answered, or are lost with the environments that were to answer."""
        return len(self.answers) == len(self.arguments)
