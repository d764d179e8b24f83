"""What a vector env counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VectorStatistics:
    """Figures of a :class:`~parenv.ParallelVectorEnv` since it was made.

    Args:
        worker_restarts: how often another process took the place of a worker that was gone.
        spinning_seconds: that this process has looked for answers before it slept, see ``spin_us``.
        workers_spinning_seconds: that workers have looked for requests before they slept, all together.

    >>> VectorStatistics(worker_restarts=0, spinning_seconds=0.5, workers_spinning_seconds=1.5).spinning_seconds
    0.5
    """

    worker_restarts: int
    spinning_seconds: float
    workers_spinning_seconds: float
