"""Access to private attributes of pools, vector envs and populations, in one place."""

from __future__ import annotations

import os
import signal
from typing import Any


def workers_of(used: Any) -> Any:
    """Return the workers of a pool, a vector env or a population."""
    session = used._session
    return session.workers if hasattr(session, "workers") else session.backend.workers


def pid_of(used: Any, worker: int) -> int:
    """Return the process id of a worker, which is -1 or 0 while the worker is being replaced."""
    return int(workers_of(used).pid(worker))


def kill(used: Any, worker: int, signum: int = signal.SIGKILL) -> bool:
    """Send a signal to a worker and return ``True``, or return ``False`` if it is dead or being replaced."""
    pid = pid_of(used, worker)
    if pid <= 0:
        return False
    try:
        os.kill(pid, signum)
    except ProcessLookupError:  # The worker has died, and the main process has not noted it yet.
        return False
    return True


def generation_of(used: Any, worker: int) -> int:
    """Return the number of times that a worker has been replaced."""
    return int(workers_of(used).generation(worker))


def deaths_of(pool: Any, worker: int) -> list[Exception]:
    """Return the list of errors for which a worker of a pool has been replaced. The pool appends to it."""
    deaths: list[Exception] = pool._session._crew._restarts.deaths[worker]
    return deaths
