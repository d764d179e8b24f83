"""Ray cluster that is shared by all tests of a file, and the check that each test cleans up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from leftovers import is_fork_server, processes_left
from ray_cluster import RayCluster

SOON_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    ray = pytest.importorskip("ray", reason="needs parenv[ray]")
    cluster = RayCluster()
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    signal.signal(signal.SIGTERM, handler)
    cluster.close()


@pytest.fixture(autouse=True)
def nothing_left_behind(cluster: RayCluster) -> Iterator[None]:
    """Check that no actor, no child process of an actor and no thread remains. Ray's own processes may remain."""
    threads = set(threading.enumerate())
    yield
    limit = time.monotonic() + SOON_S
    while (left := _left_behind(cluster, threads)) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not left, f"left behind: {left}"


def _left_behind(cluster: RayCluster, threads: set[threading.Thread]) -> list[str]:
    """Return descriptions of the remaining processes and threads, except Ray's own ones."""
    rays = psutil.Process(cluster.pid)
    of_ray = {rays, *rays.children(recursive=True)}
    actors = [f"process {process}" for process in of_ray if _is_of_an_actor(process)]
    begun = [f"thread {thread.name}" for thread in threading.enumerate() if thread not in threads]
    return processes_left(of_ray) + actors + begun


def _is_of_an_actor(process: psutil.Process) -> bool:
    try:
        return "HostActor" in process.name() or is_fork_server(process)
    except psutil.NoSuchProcess:
        return False
