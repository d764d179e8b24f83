"""Events of a pool, and the observers that record a run, repeat it or write its timeline.

The pool emits the events. The observers are in :mod:`parenv.records`, which the pool imports only if they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from parenv.crew.events import Back, Lost
from parenv.experience.episodes import EvaluationResult
from parenv.pool.arrival import Arrival
from parenv.pool.dispatch import Dispatch


class Asked(NamedTuple):
    """The main process requests the next rollout."""


class Delivered(NamedTuple):
    """The main process has the rollout that it requested, or ``None`` at its deadline."""

    arrival: Arrival | None


class Published(NamedTuple):
    """A version was written; the writing began at ``since`` on the performance counter."""

    version: int
    since: float


class Evaluated(NamedTuple):
    """An evaluation has ended that began at ``since``, beside the training or while the main process waited."""

    result: EvaluationResult
    since: float
    beside: bool


class Called(NamedTuple):
    """A method of sub-environments is about to be called."""

    method: str


class Resumed(NamedTuple):
    """The pool continues from the state of another one."""


PoolEvent = Asked | Delivered | Published | Evaluated | Called | Resumed | Lost | Back


class Observer:
    """Receives events. This base class ignores them.

    Attributes:
        seed: Seed of the run that is repeated, or ``None``.
        orders: Whether the order of events matters, so that calls wait until no rollout is in progress.
        is_over: Whether the run that is repeated ends here.
        dispatch: Function that makes the scheduler of an asynchronous pool.
    """

    seed: int | None = None
    orders = False
    is_over = False
    dispatch: Callable[..., Dispatch] = Dispatch

    def begin(self, about: Mapping[str, Any]) -> None:
        """Prepare for a pool with this layout and seed, which is about to start."""

    def hear(self, event: PoolEvent) -> None:
        """Receive an event."""

    def close(self) -> None:
        """Receive no more events. Idempotent."""


class Observers(list[Observer]):
    """All observers of a pool. They hold no reference to it, so that it can become garbage."""

    def tell(self, event: PoolEvent) -> None:
        """Send an event to each observer."""
        for observer in self:
            observer.hear(event)

    def close(self) -> None:
        """Receive no more events. Idempotent."""
        for observer in self:
            observer.close()
