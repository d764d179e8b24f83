"""Worker hosts on this machine that measure network overhead, over loopback or in network namespaces."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from parenv.hosts import RemotePlacement
from parenv.remote.net.host_keys import create_keys

DRIVER_ADDRESS = "10.97.255.1"


@contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """Make network namespaces, each connected to this one by a veth pair. This requires root and ``ip``.

    Their names are the same in every process, so a second process waits until the first one has removed them.
    Namespaces of a killed process are removed first.

    Args:
        count: Number of namespaces.

    Yields:
        Names of the namespaces. All of them reach this process at :data:`DRIVER_ADDRESS`.
    """

    def ip(command: str) -> None:
        subprocess.run(["ip", *command.split()], check=True)

    def remove() -> None:
        for i, name in enumerate(names):
            for command in (f"ip link del pv{i}d", f"ip netns del {name}"):
                subprocess.run(command.split(), check=False, stderr=subprocess.DEVNULL)

    names = [f"parenv{i}" for i in range(count)]
    with (Path(tempfile.gettempdir()) / "parenv-namespaces.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove()
        try:
            ip(f"addr replace {DRIVER_ADDRESS}/32 dev lo")
            for i, name in enumerate(names):
                ip(f"netns add {name}")
                ip(f"link add pv{i}d type veth peer name pv{i}h netns {name}")
                ip(f"addr add 10.97.{i}.1/30 dev pv{i}d")
                ip(f"link set pv{i}d up")
                for command in (f"addr add 10.97.{i}.2/30 dev pv{i}h", f"link set pv{i}h up", "link set lo up"):
                    ip(f"-n {name} {command}")
                ip(f"-n {name} route add default via 10.97.{i}.1")
            yield names
        finally:
            remove()
            ip(f"addr del {DRIVER_ADDRESS}/32 dev lo")


def free_port() -> int:
    """Return a TCP port that is unused at present."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def hosts(capacities: Sequence[int], within: Sequence[str] = (), **more: Any) -> Iterator[RemotePlacement]:
    """Start hosts that connect to a pool on this machine, and terminate them at the end.

    Args:
        capacities: Capacity of each host, in workers.
        within: Network namespaces, one per host. Default: all hosts use loopback.
        **more: Further arguments of :class:`~parenv.hosts.RemotePlacement`.

    Yields:
        Placement for one pool.
    """
    names = [f"host{i}" for i in range(len(capacities))]
    address = f"tcp://{DRIVER_ADDRESS if within else '127.0.0.1'}:{free_port()}"
    with tempfile.TemporaryDirectory() as directory:
        keys = Path(directory) / "keys"
        create_keys(keys, names)
        processes = []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for i, capacity in enumerate(capacities):
            command = [sys.executable, "-m", "parenv", "worker", "--connect", address, "--key", str(keys / names[i])]
            command[-1] += ".key"
            command += ["--num-workers", str(capacity), "--patience", "60"]
            if within:
                command = ["ip", "netns", "exec", within[i], *command]
            processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        try:
            yield RemotePlacement(address, keys / "driver.key", keys / "hosts.pub", **more)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(10.0)
