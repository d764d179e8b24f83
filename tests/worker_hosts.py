"""Worker hosts that run as processes or threads on this machine and join over loopback."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import psutil
from audits import until

from parenv.hosts import RemotePlacement
from parenv.remote.host import serve
from parenv.remote.net.host_keys import create_keys, read_host_keys

MARK = "PARENV_TEST_HOST"


class Hosts:
    """Worker hosts of a test, and up to six keys for them, which tests with the same directory share."""

    def __init__(self, directory: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.names = [f"host{i}" for i in range(6)]
        self.keys = directory / "keys"
        if not self.keys.exists():
            create_keys(self.keys, self.names)
        self.processes: list[subprocess.Popen[str]] = []
        self._network: Any = None

    def move_to(self, network: Any) -> None:
        """Start all further hosts in a network of namespaces, in which this process has another address."""
        self._network = network
        self.address = f"tcp://{network.address}:{free_port()}"

    def placement(self, **more: Any) -> RemotePlacement:
        return RemotePlacement(self.address, self.keys / "driver.key", self.keys / "hosts.pub", **more)

    def start(self, *capacities: int, patience_s: float = 120.0) -> list[subprocess.Popen[str]]:
        started = []
        for capacity in capacities:
            key = self.keys / f"{self.names[len(self.processes) % len(self.names)]}.key"
            arguments = ["--connect", self.address, "--key", str(key), "--num-workers", str(capacity)]
            command = [sys.executable, "-m", "parenv", "worker", *arguments, "--patience", str(patience_s)]
            begin = subprocess.Popen if self._network is None else functools.partial(self._network.run, 0)
            process = begin(
                command,
                env={**os.environ, MARK: self.mark, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stderr=subprocess.PIPE,
                text=True,
            )
            self.processes.append(process)
            started.append(process)
        return started

    def alive(self) -> list[psutil.Process]:
        """Return all processes of hosts: the hosts themselves, their fork servers and their workers."""
        return [process for process in psutil.process_iter() if _environment(process).get(MARK) == self.mark]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            if process.stderr is not None and not process.stderr.closed:
                process.communicate()
        until(lambda: not self.alive(), seconds=120.0)


class NearHosts:
    """Worker hosts that run in threads of this process."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._threads: list[tuple[threading.Thread, threading.Event]] = []
        self.exit_codes: list[int] = []

    def start(self, *capacities: int) -> None:
        for capacity in capacities:
            key = read_host_keys(self._hosts.keys / f"{self._hosts.names[-1 - len(self._threads)]}.key")
            leaving = threading.Event()
            thread = threading.Thread(target=self._serve, args=(key, capacity, leaving))
            self._threads.append((thread, leaving))
            thread.start()

    def placement(self, **more: Any) -> Any:
        return self._hosts.placement(**more)

    def leave(self, host: int) -> None:
        thread, leaving = self._threads[host]
        leaving.set()
        thread.join(60.0)
        assert not thread.is_alive()

    def end(self) -> None:
        for host in range(len(self._threads)):
            self.leave(host)

    def _serve(self, key: Any, capacity: int, leaving: threading.Event) -> None:
        code = serve(
            self._hosts.address,
            key,
            capacity,
            patience_s=60.0,
            tell=lambda words: None,
            is_leaving=leaving.is_set,
        )
        self.exit_codes.append(code)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ() if process.status() != psutil.STATUS_ZOMBIE else {}
    except psutil.Error:
        return {}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
