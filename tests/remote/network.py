"""Hosts for tests as network namespaces of this machine, and a network between them that can be disturbed."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

WIRE = [sys.executable, "-I", "-S", str(Path(__file__).parent / "wire.py")]
TOOLS = ("ip", "nsenter")
ENDING_S = 120.0


@functools.cache
def why_not() -> str:
    """Return the reason why namespaces cannot be used here, or an empty string if they can."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"a network of namespaces needs the commands {', '.join(missing)}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "a network of namespaces needs /dev/net/tun"
    tried = subprocess.run([*WIRE, "1"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    reason = (tried.stderr.splitlines() or [""])[-1]
    return f"a network of namespaces is not allowed here: {reason}" if reason.startswith("PermissionError") else ""


class Network:
    """Context manager with hosts 0, 1, ..., whose host names are ``host0``, ``host1``, ...

    All hosts share the file system and the process ids of this machine. Another process (``wire.py``) forwards every
    packet between hosts, and between hosts and this process. It ends with this process, even if that is killed. A
    disturbance of a host applies to all packets that it sends or receives, also to and from other hosts.

    Args:
        hosts: Number of hosts.

    Attributes:
        interface: Network interface through which this process reaches the hosts.
        address: Address of this process.
        addresses: Addresses of the hosts.
    """

    def __init__(self, hosts: int = 1) -> None:
        self._hosts = hosts
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Network:
        self._wire = subprocess.Popen(
            [*WIRE, str(self._hosts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            started = self._answer()
        except BaseException:
            self._end_wire()
            raise
        self.interface: str = started["interface"]
        self.address, *self.addresses = started["addresses"]
        self._namespaces = started["namespaces"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._end_wire()
        finally:
            for process in self._started:
                process.kill()
                process.wait(ENDING_S)
                for pipe in (process.stdin, process.stdout, process.stderr):
                    if pipe is not None:
                        pipe.close()

    def run(self, host: int, argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a command on a host; it is killed with the network at the latest.

        Args:
            host: Number of the host.
            argv: Command and its arguments.
            popen: Further arguments of ``subprocess.Popen``.
        """
        net, uts = (f"/proc/{self._wire.pid}/fd/{fd}" for fd in self._namespaces[2 * host : 2 * host + 2])
        process = subprocess.Popen(["nsenter", f"--net={net}", f"--uts={uts}", "--", *argv], **popen)
        self._started.append(process)
        return process

    def cut(self, host: int, direction: str = "both") -> None:
        """Drop all packets ``"to_driver"``, ``"from_driver"`` or in ``"both"`` directions, also those in transit.

        Neither side is notified.
        """
        self._ask("set", host, direction=direction, cut=True)

    def heal(self, host: int) -> None:
        """Remove all disturbances of a host."""
        self._ask("heal", host)

    def delay(self, host: int, ms: float, direction: str = "both") -> None:
        """Delay each packet by a number of milliseconds."""
        self._ask("set", host, direction=direction, delay_s=ms / 1000)

    def loss(self, host: int, percent: float, direction: str = "both") -> None:
        """Drop a percentage of the packets at random."""
        self._ask("set", host, direction=direction, loss=percent / 100)

    def bandwidth(self, host: int, kbit: float, direction: str = "both") -> None:
        """Limit the kilobits per second of each direction, and drop packets that would wait for more than 0.3 s."""
        self._ask("set", host, direction=direction, bytes_per_s=kbit * 1000 / 8)

    def reset(self, host: int) -> int:
        """Reset the TCP connections of a host by an RST to either side, like a firewall that has lost its table.

        Returns:
            Number of connections.
        """
        return int(self._ask("reset", host))

    def processes(self, host: int) -> list[int]:
        """Return the ids of all processes on a host."""
        return list(self._ask("processes", host))

    def power_off(self, host: int) -> None:
        """Kill all processes on a host without sending a packet. :meth:`heal` reconnects the host."""
        self.cut(host)
        self._ask("power_off", host)

    def _ask(self, do: str, host: int, **values: Any) -> Any:
        assert self._wire.stdin is not None
        self._wire.stdin.write(json.dumps({"do": do, "host": host, **values}) + "\n")
        self._wire.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._wire.stdout is not None
        line = self._wire.stdout.readline()
        if not line:
            raise RuntimeError(f"wire.py has exited with {self._wire.wait(ENDING_S)}; its error is printed above")
        return json.loads(line)

    def _end_wire(self) -> None:
        assert self._wire.stdin is not None
        assert self._wire.stdout is not None
        self._wire.stdin.close()
        try:
            self._wire.wait(ENDING_S)
        finally:
            self._wire.kill()
            self._wire.wait()
            self._wire.stdout.close()
