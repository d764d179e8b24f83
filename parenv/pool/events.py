"""What happens in a pool, and who is told of it: whoever writes a run down, and whoever has it repeat another one.

The core emits the events and knows nothing of those who hear them: they stand in a wing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from parenv.experience.episodes import EvaluationResult
from parenv.pool.arrival import Arrival
from parenv.pool.dispatch import Dispatch
from parenv.supervision.supervisor import Back, Lost


class Asked(NamedTuple):
    """The driver asks for the next rollout."""


class Delivered(NamedTuple):
    """The driver has waited for a rollout since it asked, and has it or, until its deadline, has not."""

    arrival: Arrival | None


class Published(NamedTuple):
    """There is a new version; the driver began to write it at ``since`` on the performance counter."""

    version: int
    since: float


class Evaluated(NamedTuple):
    """Episodes by a version have been run, from ``since`` on; the driver has waited for them, or they were beside."""

    result: EvaluationResult
    since: float
    beside: bool


class Questioned(NamedTuple):
    """Sub-environments are asked something, by this method."""

    method: str


Event = Asked | Delivered | Published | Evaluated | Questioned | Lost | Back


class Observer:
    """Hears of what happens; this one does nothing about it.

    Attributes:
        seed: of the run that is repeated; ``None`` where none is.
        orders: whether the order of events matters, so that questions wait until no rollout is under way.
        is_over: whether the run that is repeated ends here.
        dispatch: makes what decides for an asynchronous pool.
    """

    seed: int | None = None
    orders = False
    is_over = False
    dispatch: Callable[..., Dispatch] = Dispatch

    def begin(self, about: Mapping[str, Any]) -> None:
        """A pool with this layout and seed is about to start."""

    def hear(self, event: Event) -> None:
        """Something has happened."""

    def close(self) -> None:
        """There will be no more. Idempotent."""


class Observers(list[Observer]):
    """All who are told. They know nobody else, so that nobody is kept by whoever tells them."""

    def tell(self, event: Event) -> None:
        """Something has happened."""
        for observer in self:
            observer.hear(event)

    def close(self) -> None:
        """There will be no more. Idempotent."""
        for observer in self:
            observer.close()
