"""Check with plain sockets that ``Network`` delays, loses and cuts packets as documented."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from network import Network, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

PORT = 4000
AT_ONCE_S, LATE_S = 0.5, 120.0
MANY = 100
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
DATAGRAMS = """
    # Print each datagram that arrives, and send each line of standard input.
    import select, socket, sys
    here, there, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    end.bind((here, port))
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([end, sys.stdin], [], [])
        if end in ready:
            print(end.recv(2000).decode(), flush=True)
        if sys.stdin in ready:
            end.sendto(sys.stdin.readline().strip().encode(), (there, port))
            print("sent", flush=True)
"""
STREAM = """
    # Send every byte back, and print how the connection ended.
    import socket, sys
    end = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    try:
        while data := end.recv(65536):
            end.sendall(data)
        print("closed", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


def python(source: str, *arguments: Any) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", textwrap.dedent(source), *map(str, arguments)]


class Datagrams:
    """A UDP socket of the driver and one of a host."""

    def __init__(self, network: Network, host: int = 0) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((network.address, PORT))
        self.socket.settimeout(LATE_S)
        self._host = (network.addresses[host], PORT)
        self.peer = network.run(host, python(DATAGRAMS, self._host[0], network.address, PORT), **PIPES)
        assert self.arrived_there() == "ready"

    def __enter__(self) -> Datagrams:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_there(self, text: str) -> None:
        self.socket.sendto(text.encode(), self._host)

    def arrived_there(self) -> str:
        return self.peer.stdout.readline().strip()

    def send_here(self, text: str) -> None:
        self.peer.stdin.write(text + "\n")
        assert self.arrived_there() == "sent"

    def arrived_here(self) -> str:
        return self.socket.recv(2000).decode()

    def there_and_back_s(self) -> float:
        began = time.monotonic()
        self.send_there("ping")
        assert self.arrived_there() == "ping"
        self.send_here("pong")
        assert self.arrived_here() == "pong"
        return time.monotonic() - began


def happens_at_once(takes_s: Callable[[], float]) -> bool:
    """Return whether any of many tries is fast: on a busy machine, single tries may be slow."""
    return any(takes_s() < AT_ONCE_S for _ in range(MANY))


@contextmanager
def connection(network: Network, host: int = 0) -> Iterator[tuple[socket.socket, subprocess.Popen[str]]]:
    with socket.create_server((network.address, 0)) as server:
        server.settimeout(LATE_S)
        peer = network.run(host, python(STREAM, network.address, server.getsockname()[1]), **PIPES)
        with server.accept()[0] as accepted:
            accepted.settimeout(LATE_S)
            assert echoed(accepted, b"hello") == b"hello"
            yield accepted, peer


def echoed(end: socket.socket, data: bytes) -> bytes:
    end.sendall(data)
    found = b""
    while len(found) < len(data):
        found += end.recv(65536)
    return found


def drain(end: socket.socket) -> None:
    while end.recv(65536):
        pass


def test_hosts_have_names_and_addresses_and_reach_the_driver_and_each_other() -> None:
    with Network(hosts=2) as network:
        named = [network.run(host, ["uname", "-n"], **PIPES) for host in range(2)]
        assert [process.communicate()[0].strip() for process in named] == ["host0", "host1"]
        with connection(network, 0), connection(network, 1):
            pass
        assert len({network.address, *network.addresses}) == 3
        listening = network.run(1, python(DATAGRAMS, network.addresses[1], network.addresses[0], PORT), **PIPES)
        assert listening.stdout.readline() == "ready\n"
        sending = network.run(0, python(DATAGRAMS, network.addresses[0], network.addresses[1], PORT), **PIPES)
        assert sending.stdout.readline() == "ready\n"
        sending.stdin.write("from host0\n")
        assert listening.stdout.readline() == "from host0\n"


@pytest.mark.parametrize(("direction", "there", "here"), [("to_driver", 1, 0), ("from_driver", 0, 1), ("both", 0, 0)])
def test_a_cut_loses_only_the_packets_of_its_direction(direction: str, there: int, here: int) -> None:
    with Network() as network, Datagrams(network) as datagrams:
        network.cut(0, direction)
        datagrams.send_there("lost or not")
        if there:
            assert datagrams.arrived_there() == "lost or not"
        datagrams.send_here("lost or not")
        if here:
            assert datagrams.arrived_here() == "lost or not"
        # Packets arrive in order, so a packet that is not lost would arrive before these.
        network.heal(0)
        datagrams.send_there("after")
        assert datagrams.arrived_there() == "after"
        datagrams.send_here("after")
        assert datagrams.arrived_here() == "after"


def test_a_cut_loses_packets_in_transit() -> None:
    with Network() as network, Datagrams(network) as datagrams:
        network.delay(0, 60_000, "from_driver")
        datagrams.send_there("on its way")
        network.cut(0, "from_driver")
        network.heal(0)
        datagrams.send_there("after")
        assert datagrams.arrived_there() == "after"


@pytest.mark.more
def test_one_host_is_cut_and_the_other_is_not() -> None:
    with Network(hosts=2) as network, connection(network, 0) as cut, connection(network, 1) as other:
        network.cut(0)
        assert echoed(other[0], b"still here") == b"still here"
        cut[0].settimeout(AT_ONCE_S)
        with pytest.raises(TimeoutError):
            echoed(cut[0], b"still here")
        cut[0].settimeout(LATE_S)
        network.heal(0)
        assert cut[0].recv(100) == b"still here"


@pytest.mark.more
def test_a_delay_applies_to_each_direction() -> None:
    with Network() as network, Datagrams(network) as datagrams:
        assert happens_at_once(datagrams.there_and_back_s)
        network.delay(0, 300)
        assert 0.6 <= datagrams.there_and_back_s() < LATE_S
        network.delay(0, 0, "to_driver")
        assert 0.3 <= datagrams.there_and_back_s() < LATE_S
        network.heal(0)
        assert happens_at_once(datagrams.there_and_back_s)


@pytest.mark.parametrize(("percent", "fewest", "most"), [(0, 300, 300), (30, 170, 250), (100, 0, 0)])
def test_the_given_share_of_packets_is_lost(percent: float, fewest: int, most: int) -> None:
    with Network() as network, Datagrams(network) as datagrams:
        network.loss(0, percent, "from_driver")
        for number in range(300):
            datagrams.send_there(str(number))
        network.heal(0)
        datagrams.send_there("end")
        arrived = list(iter(datagrams.arrived_there, "end"))
        assert fewest <= len(arrived) <= most
        assert arrived == sorted(arrived, key=int)


def test_a_connection_outlives_lost_packets() -> None:
    with Network() as network, connection(network) as (end, _):
        network.loss(0, 10)
        data = os.urandom(100_000)
        assert echoed(end, data) == data


@pytest.mark.more
def test_the_bandwidth_is_limited() -> None:
    with Network() as network, connection(network) as (end, _):
        data = os.urandom(400_000)

        def echo_s() -> float:
            began = time.monotonic()
            assert echoed(end, data) == data
            return time.monotonic() - began

        assert happens_at_once(echo_s)
        network.bandwidth(0, 3200, "from_driver")
        assert 0.9 < echo_s() < LATE_S


@pytest.mark.parametrize("busy", [False, True])
def test_a_reset_ends_the_connections_of_one_host_on_both_sides(busy: bool) -> None:
    with Network(hosts=2) as network, connection(network, 0) as (end, peer), connection(network, 1) as (other, _):
        if busy:
            network.delay(0, 20)
            network.loss(0, 5)
            end.sendall(bytes(300_000))
        assert network.reset(0) == 1
        with pytest.raises(ConnectionResetError):
            drain(end)
        assert peer.stdout.readline() == "ConnectionResetError\n"
        assert echoed(other, b"still here") == b"still here"
        assert network.reset(0) == 0


def test_closed_connections_are_not_counted_as_reset() -> None:
    with Network() as network:
        with connection(network) as (_, peer):
            pass
        assert peer.stdout.readline() == "closed\n"
        peer.wait(LATE_S)
        with Datagrams(network) as datagrams:
            assert happens_at_once(datagrams.there_and_back_s)
        assert network.reset(0) == 0


def test_power_off_kills_all_processes_and_sends_no_packets() -> None:
    with Network() as network, connection(network) as (end, peer):
        family = network.run(0, ["sh", "-c", "sleep 1000 & echo ready; wait"], **PIPES)
        assert family.stdout.readline() == "ready\n"
        assert {peer.pid, family.pid} < set(network.processes(0))
        network.power_off(0)
        assert network.processes(0) == []
        assert peer.wait(LATE_S) == family.wait(LATE_S) == -signal.SIGKILL
        end.settimeout(AT_ONCE_S)
        with pytest.raises(TimeoutError):
            end.recv(1)
        network.heal(0)
        with pytest.raises(ConnectionResetError):
            echoed(end, b"is anybody there?")
        with connection(network):
            pass


def test_two_networks_at_once_are_separate() -> None:
    with Network() as one, Network() as other, connection(one), connection(other):
        assert not {one.address, *one.addresses} & {other.address, *other.addresses}
        assert {len(network.processes(0)) for network in (one, other)} == {1}


@pytest.mark.linux  # It uses a pidfd.
def test_a_killed_test_leaves_no_host_no_process_and_no_interface() -> None:
    script = """
        import os, signal, socket, subprocess, sys
        sys.path.insert(0, sys.argv[1])
        from network import Network
        network = Network().__enter__()
        deaf = ["sh", "-c", "trap '' TERM HUP; setsid sleep 1000 >/dev/null & echo ready; wait"]
        network.run(0, deaf, stdout=subprocess.PIPE).stdout.readline()
        interface = socket.if_nametoindex(network.interface)
        print(interface, network._wire.pid, *network.processes(0), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run(
        python(script, Path(__file__).parent), stdout=subprocess.PIPE, text=True, timeout=250, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    interface, *processes = map(int, killed.stdout.split())
    assert len(processes) == 3
    for pid in processes:
        _wait_for_end(pid)
    assert interface not in [index for index, _ in socket.if_nameindex()]


def test_a_missing_command_is_named_in_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert why_not.__wrapped__() == "a network of namespaces needs the commands ip, nsenter"


def _wait_for_end(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(fd):
        assert select.select([fd], [], [], LATE_S)[0], f"process {pid} is still there"
