"""Access to private attributes of pools, vector envs and populations, in one place."""

from __future__ import annotations

from typing import Any


def workers_of(used: Any) -> Any:
    """Return the workers of a pool, a vector env or a population."""
    session = used._session
    return session.workers if hasattr(session, "workers") else session.backend.workers


def pid_of(used: Any, worker: int) -> int:
    """Return the process id of a worker, which is -1 or 0 while the worker is being replaced."""
    return int(workers_of(used).pid(worker))


def generation_of(used: Any, worker: int) -> int:
    """Return the number of times that a worker has been replaced."""
    return int(workers_of(used).generation(worker))


def deaths_of(pool: Any, worker: int) -> list[Exception]:
    """Return the list of errors for which a worker of a pool has been replaced. The pool appends to it."""
    deaths: list[Exception] = pool._session._supervisor.deaths[worker]
    return deaths
