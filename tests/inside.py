"""What nothing public tells of the workers of a pool or a vector env, in one place."""

from __future__ import annotations

from typing import Any


def workers_of(used: Any) -> Any:
    """The workers of a pool, a vector env or a population."""
    session = used._session
    return session.workers if hasattr(session, "workers") else session.backend.workers


def pid_of(used: Any, worker: int) -> int:
    """The process id of a worker, which is -1 or 0 while the worker is being replaced."""
    return int(workers_of(used).pid(worker))


def generation_of(used: Any, worker: int) -> int:
    """How often a worker has been replaced."""
    return int(workers_of(used).generation(worker))


def deaths_of(pool: Any, worker: int) -> list[Exception]:
    """The reasons for which a worker of a pool has been replaced so far, which grow with it."""
    deaths: list[Exception] = pool._session._supervisor.deaths[worker]
    return deaths
