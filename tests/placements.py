"""Places in which a vector env can step its sub-environments, and the fixture of tests that must hold in all of them.

A test with the argument ``place`` runs once for each place, except for places that cannot do what the test ``needs``.
Places that cost much are ``more``, unless the test is ``core``, ``core`` for these places, or ``one_in(n)``. Spawned
workers always are.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import contract_envs
import pytest
from worker_hosts import Hosts, NearHosts

from parenv import ParallelVectorEnv, WorkerOptions, entry_point

IN_PROCESS, FORKS, CALLER, SPAWNED, ELSEWHERE, HOSTS = PLACES = (
    "in_process", "forks", "caller", "spawned", "other_interpreter", "hosts",
)  # fmt: skip
COSTLY = (SPAWNED, ELSEWHERE, HOSTS)
OPTIONS = {
    SPAWNED: WorkerOptions(start_method="spawn"),
    ELSEWHERE: WorkerOptions(python=sys.executable),
}

CANNOT: dict[str, dict[str, str]] = {
    "workers": {IN_PROCESS: "no process can be killed or interrupted but the one that runs the test"},
    "all in workers": {
        IN_PROCESS: "there is no worker",
        CALLER: "the process that runs the test steps a share, and nothing interrupts it",
    },
    "encoding": {
        IN_PROCESS: "objects reach the user as they are",
        CALLER: "infos of a worker are encoded, and infos of the caller's share are not",
    },
    "functions": {ELSEWHERE: "functions and classes of this interpreter cannot be sent to another one"},
    "all spaces": {ELSEWHERE: "only spaces of a fixed size are described to this interpreter"},
    "custom spaces": {
        ELSEWHERE: "the class of a space in another interpreter is not known here",
        HOSTS: "this process makes no environment of a host, so it has only the description of its spaces",
    },
    "large messages": {HOSTS: "a message of a host has at most max_message_bytes"},
    "shared memory": {HOSTS: "rows are copied from messages"},
}
"""Reasons for which a place cannot do what a test needs. No place has ``step_threads``, which vector envs refuse."""


FILE = contract_envs.__file__


def named(cls: str, count: int = 3, /, **arguments: Any) -> list[Any]:
    """Return factories, which any interpreter can use, of environments of a class of :mod:`contract_envs`."""
    takes_id = "env_id" in inspect.signature(getattr(contract_envs, cls)).parameters
    each = [{"env_id": env_id, **arguments} if takes_id else arguments for env_id in range(count)]
    return [entry_point(f"{FILE}:{cls}", **given) for given in each]


@dataclass(frozen=True)
class Place:
    """Way to make vector envs whose sub-environments are stepped in one place.

    Attributes:
        name: One of :data:`PLACES`.
        begin_hosts: Function that starts a host with room for a number of workers, and returns its placement.
    """

    name: str
    begin_hosts: Callable[[int], Any]

    def __call__(self, env_fns: Sequence[Any], workers: Any = None, most: int = 2, **more: Any) -> ParallelVectorEnv:
        """Make a vector env.

        Args:
            env_fns: Factories of the sub-environments.
            workers: Worker options as a dict, beside those of the place.
            most: Number of workers, unless the place or the number of factories needs fewer.
            **more: Arguments of the vector env.
        """
        num_workers = min(most, len(env_fns))
        if self.name == IN_PROCESS:
            num_workers = 0
        elif self.name == CALLER:
            num_workers, more["caller_steps"] = min(num_workers, len(env_fns) - 1), True
        elif self.name == HOSTS:
            more["placement"] = self.begin_hosts(num_workers)
        options = replace(OPTIONS.get(self.name, WorkerOptions()), **(workers or {}))
        return ParallelVectorEnv(env_fns, num_workers=num_workers, workers=options, **more)


def can(place: str, *needs: str) -> bool:
    """Return whether a place can do what a test needs."""
    return not any(place in CANNOT[need] for need in needs)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" not in metafunc.fixturenames:
        return
    marks = {mark.name: mark.args for mark in metafunc.definition.iter_markers()}
    needs = [need for mark in metafunc.definition.iter_markers("needs") for need in mark.args]
    core: Any = PLACES if "one_in" in marks else marks["core"] or PLACES if "core" in marks else ()
    costly = {*COSTLY} - {*core} | {SPAWNED}
    metafunc.parametrize(
        "place",
        [pytest.param(name, marks=pytest.mark.more if name in costly else ()) for name in PLACES if can(name, *needs)],
        indirect=True,
    )


@pytest.fixture(scope="session")
def host_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the keys of all hosts."""
    return tmp_path_factory.mktemp("keys")


@pytest.fixture
def place(request: pytest.FixtureRequest, host_keys: Path) -> Iterator[Place]:
    begun: list[NearHosts] = []

    def begin_hosts(capacity: int) -> Any:
        near = NearHosts(Hosts(host_keys))
        begun.append(near)
        near.start(capacity)
        return near.placement()

    yield Place(request.param, begin_hosts)
    for near in begun:
        near.end()
