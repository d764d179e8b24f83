"""Places in which the workers of a pool can be, and a fixture for tests that must hold in all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faults
import pytest
from worker_hosts import Hosts, NearHosts

from parenv import AsyncWorkerPool, WorkerOptions, entry_point

IN_PROCESS, FORKS, THREADS, STEP_WORKERS, ELSEWHERE, HOSTS = PLACES = (
    "in process", "forks", "threads", "step workers", "other interpreter", "hosts",
)  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    THREADS: {"step_threads": 2},
    STEP_WORKERS: {"step_workers": 2},
    ELSEWHERE: {"python": sys.executable},
}

CANNOT: dict[str, dict[str, str]] = {
    "processes": {IN_PROCESS: "the only process is the one that runs the test"},
    "loading": {IN_PROCESS: "the process that publishes a policy acts with it, and loads none"},
    "agents": {
        THREADS: "named policies refuse threads",
        STEP_WORKERS: "the vector env of a worker has single agents only",
        ELSEWHERE: "named policies refuse another interpreter",
    },
    "draws": {
        IN_PROCESS: "one process draws the random numbers of all workers",
        STEP_WORKERS: "the policy draws random numbers for each half",
    },
    "shares": {IN_PROCESS: "evaluations, and rollouts of agents in turn, depend on the shares of workers"},
    "functions": {ELSEWHERE: "functions and classes of this interpreter cannot be sent to another one"},
    "all spaces": {ELSEWHERE: "only spaces of a fixed size are described to this interpreter"},
    "states": {
        STEP_WORKERS: "the processes that step have no states",
        ELSEWHERE: "the state of an environment stays in its interpreter",
    },
}
"""Reasons for which a place cannot do what a test needs."""

REFUSED: dict[tuple[str, str], str] = {
    (IN_PROCESS, "restart_worker"): "needs worker processes",
    (STEP_WORKERS, "restart_env"): "cannot be used with step_workers",
}
"""Messages with which a place refuses a reaction to exceptions."""


def can(place: str, *needs: str) -> bool:
    """Return whether a place can do what a test needs."""
    return not any(place in CANNOT[need] for need in needs)


@dataclass(frozen=True)
class Place:
    """Way to make pools whose workers are in one place.

    Attributes:
        name: One of :data:`PLACES`.
        begin_hosts: Function that starts hosts for two workers, and returns their placement.
    """

    name: str
    begin_hosts: Callable[[], Any]

    def pool(self, env_fn: Any, policy: Any, *, workers: dict[str, Any] | None = None, **more: Any) -> AsyncWorkerPool:
        """Make a pool.

        Args:
            env_fn: Factories of environments.
            policy: Policy, or named policies.
            workers: Worker options beside those of the place.
            **more: Other arguments of the pool.
        """
        if self.name == HOSTS:
            more["placement"] = self.begin_hosts()
        options = WorkerOptions(**OPTIONS.get(self.name, {}), **(workers or {}))
        num_workers = 0 if self.name == IN_PROCESS else 2
        return AsyncWorkerPool(env_fn, policy, num_workers=num_workers, workers=options, **more)


def ledgers_anywhere(count: int, **options: Any) -> list[Any]:
    """Return factories of ledgers that any interpreter can use."""
    return [entry_point("parenv.testing:LedgerEnv", env_id=env_id, **options) for env_id in range(count)]


def faulty_anywhere(count: int, fault: faults.Fault) -> list[Any]:
    """Return factories of environments with a fault that any interpreter can use."""
    given = {"place": fault.place, "kills": fault.kills, "folder": str(fault.folder)}
    return [entry_point(f"{faults.__file__}:made", env_id=env_id, **given) for env_id in range(count)]


def places(*needs: str) -> list[Any]:
    """Return parameters of ``pool_place``: all places that can do what a test needs. Costly places are ``more``."""
    marked = {name: pytest.mark.more if name in (ELSEWHERE, HOSTS) else () for name in PLACES if can(name, *needs)}
    return [pytest.param(name, marks=marks) for name, marks in marked.items()]


def cases(options: Collection[Any], *needs: str) -> list[Any]:
    """Return parameters of ``pool_place`` and another parameter, whose values may have a tuple of needs beside them."""
    found = []
    for name in PLACES:
        for option in options:
            value, more = option if isinstance(option, tuple) else (option, ())
            if can(name, *needs, *more):
                found.append(pytest.param(name, value))
    return found


@pytest.fixture
def pool_place(request: pytest.FixtureRequest, host_keys: Path) -> Iterator[Place]:
    begun: list[NearHosts] = []

    def begin_hosts() -> Any:
        begun.append(NearHosts(Hosts(host_keys)))
        begun[-1].start(1, 1)
        return begun[-1].placement()

    yield Place(request.param, begin_hosts)
    for near in begun:
        near.end()
