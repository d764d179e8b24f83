"""Check worker hosts on a real Ray cluster of several nodes, with a placeholder for the host code."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from audits import until
from late import Late
from ray_cluster import RayCluster
from scripts import printed_by

from parenv.errors import ConfigurationError
from parenv.options import RayPlacement, RestartPolicy
from parenv.remote.ray import RayHosts

ray = Late("ray")

# Slow on a busy machine: Ray detects a lost node only after several seconds, and each of its processes imports Ray.
pytestmark = [pytest.mark.soak]

ENTRY = "ray_placeholder:serve"
RESTART = RestartPolicy(max_restarts=2, backoff_s=0.2)
KEYS: Any = {"public": "not a real key"}
SOON_S, LATE_S = 60.0, 120.0


@pytest.fixture
def add_node(cluster: RayCluster) -> Iterator[Callable[..., int]]:
    """Return a function that adds a node until the end of the test and returns the process id of its raylet."""
    with contextlib.ExitStack() as stack:

        def add(**resources: float) -> int:
            raylet = cluster.add(**resources)
            stack.callback(cluster.remove, raylet)
            return raylet

        yield add


@dataclass
class Connected:
    """Host that has connected to the driver."""

    connection: socket.socket
    pid: int
    raylet: int
    children: list[int]
    num_workers: int
    keys: Any
    in_main_thread: bool

    @property
    def processes(self) -> list[int]:
        return [self.pid, *self.children]


class Driver:
    """Replacement for a pool that listens for hosts."""

    def __init__(self, listen: str) -> None:
        host = listen.removeprefix("tcp://").removesuffix(":*")
        self._listener = socket.create_server((host, 0))
        self._hosts: list[Connected] = []
        self.address = f"tcp://{host}:{self._listener.getsockname()[1]}"

    def hear(self, timeout_s: float = LATE_S) -> Connected:
        """Wait for the next host to connect, and return it."""
        self._listener.settimeout(timeout_s)
        connection, _ = self._listener.accept()
        connection.settimeout(timeout_s)
        with connection.makefile() as lines:
            self._hosts.append(Connected(connection, **json.loads(lines.readline())))
        return self._hosts[-1]

    def no_host_connects(self, for_s: float) -> bool:
        return not select.select([self._listener], [], [], for_s)[0]

    def close(self) -> None:
        self._listener.close()
        for host in self._hosts:
            host.connection.close()


@pytest.fixture
def make_hosts(add_node: object) -> Iterator[Callable[..., tuple[RayHosts, Driver]]]:
    """Return a function that starts hosts. They are closed after the test, before its nodes are removed."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any, entry: str = ENTRY, **more: Any) -> tuple[RayHosts, Driver]:
            hosts = RayHosts(RayPlacement(*arguments, **more), entry, RESTART)
            stack.callback(hosts.close)
            driver = Driver(hosts.listen)
            stack.callback(driver.close)
            hosts.start(driver.address, KEYS)
            return hosts, driver

        yield make


def are_gone(processes: list[int]) -> bool:
    def is_gone(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return all(is_gone(pid) for pid in processes)


def test_hosts_share_the_workers_and_know_the_driver(add_node: Any, make_hosts: Any) -> None:
    add_node()
    hosts, driver = make_hosts(5, workers_per_host=2, resources={"CPU": 0.5})
    heard = [driver.hear() for _ in range(3)]
    assert sorted(host.num_workers for host in heard) == [1, 2, 2]
    assert all(host.keys == KEYS and host.in_main_thread for host in heard)
    assert len({host.raylet for host in heard}) == 2
    assert hosts.problems(joined=3) == []


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_host_that_is_killed_comes_back(make_hosts: Any, signum: signal.Signals) -> None:
    _, driver = make_hosts(1)
    killed = driver.hear()
    os.kill(killed.pid, signum)
    until(lambda: are_gone(killed.processes), seconds=SOON_S)
    back = driver.hear()
    assert (back.pid != killed.pid, back.num_workers, back.keys) == (True, 1, KEYS)


def test_a_host_whose_node_is_lost_comes_back_on_another(cluster: RayCluster, add_node: Any, make_hosts: Any) -> None:
    raylet = cluster.add(spare=1)
    hosts, driver = make_hosts(1, resources={"CPU": 1, "spare": 0.5})
    lost = driver.hear()
    assert lost.raylet == raylet
    cluster.remove(raylet)
    until(lambda: are_gone(lost.processes), seconds=SOON_S)
    (problem,) = hosts.problems(joined=0)
    assert problem.startswith("1 of 1 worker hosts have been placed by Ray and are not connected")
    assert driver.address in problem
    another = add_node(spare=1)
    assert driver.hear().raylet == another
    assert hosts.problems(joined=1) == []


def test_a_host_on_a_node_that_ray_considers_dead_ends_by_itself(add_node: Any, make_hosts: Any) -> None:
    raylet = add_node(spare=1)
    _, driver = make_hosts(1, resources={"spare": 0.5})
    forsaken = driver.hear()
    another = add_node(spare=1)
    for pid in (raylet, forsaken.pid):
        os.kill(pid, signal.SIGSTOP)
    try:
        assert driver.hear().raylet == another
        assert not are_gone([forsaken.pid])
    finally:
        for pid in (raylet, forsaken.pid):
            os.kill(pid, signal.SIGCONT)
    until(lambda: are_gone(forsaken.processes))


def test_resources_that_no_node_has_are_named_until_one_comes(add_node: Any, make_hosts: Any) -> None:
    hosts, driver = make_hosts(2, workers_per_host=2, resources={"CPU": 1, "arm": 1})
    assert hosts.problems() == [
        "1 of 1 worker hosts wait for Ray to place them: each needs CPU: 2, arm: 2, and no node has more than arm: 0"
    ]
    add_node(arm=2)
    driver.hear()
    assert hosts.problems(joined=1) == []


def test_resources_that_are_in_use_are_named(make_hosts: Any) -> None:
    _, driver = make_hosts(1, resources={"CPU": 1.5})
    driver.hear()
    hosts, _ = make_hosts(2, resources={"CPU": 1})
    until(lambda: "all nodes together have only CPU: 0.5 free" in hosts.problems()[0])
    assert hosts.problems()[0].startswith("2 of 2 worker hosts wait for Ray to place them: each needs CPU: 1, and ")


@pytest.mark.parametrize("word", [b"end", b"raise"])
def test_a_host_that_ends_is_replaced(make_hosts: Any, word: bytes, caplog: pytest.LogCaptureFixture) -> None:
    hosts, driver = make_hosts(1)
    ended = driver.hear()
    ended.connection.sendall(word)
    until(lambda: hosts.problems() != [])
    assert hosts.problems()[0].startswith("1 of 1 worker hosts have ended. See Ray's log of them")
    assert ray.get(hosts._hosts[0].ended) is None, "the driver would unpickle another result"
    assert driver.no_host_connects(for_s=0.2)
    with caplog.at_level(logging.WARNING, logger="parenv"):
        hosts.tend()
    assert [record.getMessage() for record in caplog.records] == [
        "worker host 0 of Ray has ended, and will be replaced"
    ]
    assert driver.hear().num_workers == 1
    assert hosts.problems(joined=1) == []


def test_a_host_that_cannot_run_is_replaced_a_limited_number_of_times(
    make_hosts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hosts, _ = make_hosts(1, entry="ray_placeholder:nothing")

    def is_given_up() -> bool:
        hosts.tend()
        return "will not be replaced" in caplog.text

    with caplog.at_level(logging.WARNING, logger="parenv"):
        until(is_given_up)
        hosts.tend()
    told = "worker host 0 of Ray has ended, "
    assert [record.getMessage() for record in caplog.records] == [
        *[told + "and will be replaced"] * RESTART.max_restarts,
        told + "and will not be replaced",
    ]
    assert hosts.problems()[0].startswith("1 of 1 worker hosts have ended")


def test_hosts_that_end_in_time_are_not_killed(make_hosts: Any) -> None:
    hosts, driver = make_hosts(1)
    host = driver.hear()
    threading.Timer(0.3, host.connection.sendall, [b"end"]).start()
    began = time.monotonic()
    hosts.close(timeout_s=LATE_S)
    assert time.monotonic() - began < SOON_S
    until(lambda: are_gone(host.processes), seconds=SOON_S)


def test_close_does_not_wait_for_hosts_without_a_place(make_hosts: Any) -> None:
    hosts, _ = make_hosts(1, resources={"CPU": 64})
    began = time.monotonic()
    hosts.close(timeout_s=LATE_S)
    assert time.monotonic() - began < SOON_S


def test_close_kills_hosts_that_wait_or_run_and_may_be_called_again(make_hosts: Any) -> None:
    hosts, driver = make_hosts(2, resources={"CPU": 1.5})
    host = driver.hear()
    hosts.close()
    until(lambda: are_gone(host.processes), seconds=SOON_S)
    hosts.close()
    hosts.tend()
    assert hosts.problems() == []
    assert driver.no_host_connects(for_s=0.5)


def test_resources_that_ray_refuses_are_refused(make_hosts: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"RayPlacement.resources must be accepted by Ray"):
        make_hosts(1, resources={"GPU": 1.5})


SCRIPT = """
import sys
from parenv.options import RayPlacement
from parenv.remote.ray import RayHosts

hosts = RayHosts(RayPlacement(1), "ray_placeholder:serve", None)
hosts.start(sys.argv[1], None)
print("started", flush=True)
sys.stdin.read()
SHUTDOWN
hosts.tend()
print(hosts.problems(), flush=True)
hosts.close()
assert ray.is_initialized() == REMAINS
"""


def run(script: str, cluster: RayCluster, address: str) -> subprocess.Popen[str]:
    environment = {**cluster.environment, "RAY_ADDRESS": cluster.address}
    started = subprocess.Popen(
        [sys.executable, "-c", script, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "started\n"
    return started


@pytest.fixture
def driver(cluster: RayCluster) -> Iterator[Driver]:
    driver = Driver(f"tcp://{ray.util.get_node_ip_address()}:*")
    yield driver
    driver.close()


def test_hosts_end_with_their_driver(cluster: RayCluster, driver: Driver) -> None:
    with run(SCRIPT.replace("SHUTDOWN", ""), cluster, driver.address) as script:
        host = driver.hear()
        script.kill()
    until(lambda: are_gone(host.processes), seconds=SOON_S)


@pytest.mark.parametrize(("then", "remains"), [("", False), ("ray.init()", True)])
def test_a_shutdown_of_ray_is_reported_and_ray_is_left_as_it_is(
    cluster: RayCluster, driver: Driver, then: str, remains: bool
) -> None:
    text = SCRIPT.replace("SHUTDOWN", f"import ray; ray.shutdown(); {then}").replace("REMAINS", str(remains))
    with run(text, cluster, driver.address) as script:
        host = driver.hear()
        said, _ = script.communicate(timeout=LATE_S)
    assert script.returncode == 0
    assert said == "['Ray was shut down, which has ended all worker hosts']\n"
    until(lambda: are_gone(host.processes), seconds=SOON_S)


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r'pip install "\.\[ray\]"'):
        RayHosts(RayPlacement(1), ENTRY, RESTART)


def test_ray_is_imported_only_where_it_is_used() -> None:
    script = "import sys, parenv, parenv.remote.ray; assert 'ray' not in sys.modules"
    printed_by(script)
