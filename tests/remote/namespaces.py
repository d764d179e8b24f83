"""Network namespaces on this machine, whose connections a test can cut."""

from __future__ import annotations

import fcntl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
