"""Ray's object store and actors: weights to them, gradients from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray

from systems import rays
from systems.exchange import Source, milliseconds
from systems.loops import Close, Measure


@ray.remote
class Worker:
    """Has a copy of the weights, and a gradient.

    Args:
        megabytes: of either.
    """

    def __init__(self, megabytes: int) -> None:
        self._weights, self._gradient = (np.zeros(megabytes * 250_000, np.float32) for _ in range(2))

    def load(self, weights: Any) -> float:
        """Copy an object from the object store, and return the first number of the copy."""
        np.copyto(self._weights, weights)
        return float(self._weights[0])

    def prepare(self, order: float) -> None:
        """Another gradient."""
        self._gradient[:] = order

    def gradient(self) -> Any:
        """The gradient ``[P]``."""
        return self._gradient


def weights(megabytes: int, num_workers: int) -> tuple[Measure, Close]:
    """``ray.put`` once, and each actor copies."""
    rays.start(num_workers)
    workers, source = [Worker.remote(megabytes) for _ in range(num_workers)], Source(megabytes)

    def publish() -> None:
        placed = ray.put(source.weights)
        source.check(ray.get([worker.load.remote(placed) for worker in workers]))

    return milliseconds(publish, source.change), ray.shutdown


def reduction(megabytes: int, num_workers: int) -> tuple[Measure, Close]:
    """Actors return arrays, and the driver takes the mean."""
    rays.start(num_workers)
    workers, source = [Worker.remote(megabytes) for _ in range(num_workers)], Source(1)

    def prepare() -> None:
        source.version += 1
        ray.get([worker.prepare.remote(source.version) for worker in workers])

    def reduce() -> None:
        first, second = ray.get([worker.gradient.remote() for worker in workers])
        mean = np.add(first, second)
        mean *= 0.5
        source.check([mean[0], mean[-1]])

    return milliseconds(reduce, prepare), ray.shutdown
