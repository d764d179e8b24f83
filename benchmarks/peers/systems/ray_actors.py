"""Weights and gradients that Ray actors exchange through the object store."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray

from systems import rays
from systems.exchange import Source, milliseconds
from systems.loops import Close, Measure


@ray.remote
class Worker:
    """Actor with a copy of the weights and a gradient.

    Args:
        megabytes: Size of the weights, and of the gradient.
    """

    def __init__(self, megabytes: int) -> None:
        self._weights, self._gradient = (np.zeros(megabytes * 250_000, np.float32) for _ in range(2))

    def load(self, weights: Any) -> float:
        """Copy weights from the object store, and return the first weight of the copy."""
        np.copyto(self._weights, weights)
        return float(self._weights[0])

    def prepare(self, order: float) -> None:
        """Set the gradient to a number."""
        self._gradient[:] = order

    def gradient(self) -> Any:
        """Return the gradient ``[P]``."""
        return self._gradient


def weights(megabytes: int, num_workers: int) -> tuple[Measure, Close]:
    """Measure one ``ray.put`` and the copies by all actors."""
    rays.start(num_workers)
    workers, source = [Worker.remote(megabytes) for _ in range(num_workers)], Source(megabytes)

    def publish() -> None:
        placed = ray.put(source.weights)
        source.check(ray.get([worker.load.remote(placed) for worker in workers]))

    return milliseconds(publish, source.change), ray.shutdown


def reduction(megabytes: int, num_workers: int) -> tuple[Measure, Close]:
    """Measure the gradients that two actors return, and their mean."""
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
