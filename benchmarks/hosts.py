"""Worker hosts on this machine, for measuring what a network costs: over loopback, or each in a network namespace."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from parenv import RemotePlacement
from parenv.transport.keys import create_keys

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "remote"))


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def hosts(capacities: Sequence[int], network: Any = None, **more: Any) -> Iterator[RemotePlacement]:
    """Start hosts that look for a driver, and end them.

    Args:
        capacities: room of each, in workers.
        network: a ``Network`` of ``tests/remote/network.py`` with as many hosts; ``None``: loopback.
        **more: of the placement.

    Yields:
        The placement for one pool.
    """
    names = [f"host{i}" for i in range(len(capacities))]
    address = f"tcp://{'127.0.0.1' if network is None else network.address}:{free_port()}"
    with tempfile.TemporaryDirectory() as directory:
        keys = Path(directory) / "keys"
        create_keys(keys, names)
        processes = []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for i, capacity in enumerate(capacities):
            command = [sys.executable, "-m", "parenv", "worker", "--connect", address, "--key", str(keys / names[i])]
            command[-1] += ".key"
            command += ["--num-workers", str(capacity), "--patience", "60"]
            settings: Any = {"env": environment, "stderr": subprocess.DEVNULL}
            if network is None:
                processes.append(subprocess.Popen(command, **settings))
            else:
                processes.append(network.run(i, command, **settings))
        try:
            yield RemotePlacement(address, keys / "driver.key", keys / "hosts.pub", **more)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(10.0)
