"""Process behind ``network.Network``, which holds the hosts' namespaces and forwards all packets between them.

Each host is an unnamed network namespace with one TUN interface. Another TUN interface is in the driver's namespace.
Their other ends are descriptors of this process, so the namespaces and interfaces disappear with it. It exits when its
parent process is gone, and then kills all processes on its hosts. It requires only ``ip``, because many kernels lack
the queueing disciplines that delay and lose packets.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

NETWORK, SUBNET = "198.18", 24  # RFC 2544 reserves these addresses for network tests.
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET, CLONE_NEWUTS = 0x40000000, 0x04000000
PACKET_BYTES, PACKETS_AT_ONCE = 65536, 64
MAX_QUEUED, MAX_BACKLOG_S, MAX_FLOWS = 1000, 0.3, 1000
UNDISTURBED = {"cut": False, "delay_s": 0.0, "loss": 0.0, "bytes_per_s": 0.0, "free_at": 0.0}
TCP, FIN, SYN, RST, ACK = 6, 1, 2, 4, 16
KILL_S = 120.0
_C = ctypes.CDLL(None, use_errno=True)


@dataclass
class Link:
    """One direction of the link of a host."""

    cut: bool = False
    delay_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float = 0.0
    queue: deque[tuple[float, bytes]] = field(default_factory=deque)
    free_at: float = 0.0

    def offer(self, packet: bytes, now: float, rng: random.Random) -> None:
        if rng.random() < self.loss or len(self.queue) >= MAX_QUEUED:
            return
        if self.bytes_per_s:
            if self.free_at - now > MAX_BACKLOG_S:
                return
            self.free_at = max(self.free_at, now) + len(packet) / self.bytes_per_s
        due = max(now, self.free_at) + self.delay_s
        self.queue.append((max(due, self.queue[-1][0]) if self.queue else due, packet))

    def due(self, now: float) -> Iterator[bytes]:
        if self.cut:
            self.queue.clear()
        while self.queue and self.queue[0][0] <= now:
            yield self.queue.popleft()[1]


class Segment(NamedTuple):
    """Fields of a TCP segment: addresses and ports, sequence and acknowledgement numbers, flags, and bytes of data."""

    way: bytes
    seq: int
    ack: int
    flags: int
    length: int


class Flows:
    """State of the TCP connections that pass, as needed to reset either side in the name of the other."""

    def __init__(self) -> None:
        self._next: dict[bytes, int] = {}
        self._acked: dict[bytes, int] = {}
        self._finished: set[bytes] = set()

    def taken_in(self, packet: bytes) -> None:
        """Note a packet that one of the sides has sent."""
        if (segment := _segment(packet)) is not None and segment.flags & ACK and _back(segment.way) in self._next:
            self._acked[segment.way] = segment.ack

    def delivered(self, packet: bytes) -> None:
        """Note a packet that the other side now gets."""
        if (segment := _segment(packet)) is None:
            return
        way, flags = segment.way, segment.flags
        if flags & RST or (flags & SYN and not flags & ACK):
            self._forget(way)
        if flags & RST or not (flags & SYN or way in self._next):
            return
        end = (segment.seq + segment.length + bool(flags & SYN) + bool(flags & FIN)) & 0xFFFFFFFF
        if (end - self._next.setdefault(way, end)) & 0xFFFFFFFF < 1 << 31:
            self._next[way] = end
        if flags & FIN:
            self._finished.add(way)
        while len(self._next) > MAX_FLOWS:
            self._forget(next(iter(self._next)))

    def resets(self, address: bytes) -> tuple[int, list[bytes]]:
        """Return the number of connections of an address, and the packets that reset them on both sides."""
        packets: list[bytes] = []
        connections = 0
        for way in list(self._next):
            back = _back(way)
            if way not in self._next or address not in (way[:4], way[4:8]) or {way, back} <= self._finished:
                continue
            connections += 1
            for to in (way, back):
                # A side accepts only the sequence number that it expects next: the end of the last segment that it got
                # or, if an earlier segment was lost, its last acknowledgement.
                expected = {self._next.get(to), self._acked.get(_back(to))} - {None}
                packets += [_reset(to, seq, self._next.get(_back(to), 0)) for seq in expected]
            self._forget(way)
        return connections, packets

    def _forget(self, way: bytes) -> None:
        for one in (way, _back(way)):
            self._next.pop(one, None)
            self._acked.pop(one, None)
            self._finished.discard(one)


def _back(way: bytes) -> bytes:
    return way[4:8] + way[:4] + way[10:12] + way[8:10]


def _segment(packet: bytes) -> Segment | None:
    start = (packet[0] & 15) * 4
    if packet[9] != TCP or len(packet) < start + 20 or struct.unpack_from("!H", packet, 6)[0] & 0x1FFF:
        return None
    seq, ack, offset, flags = struct.unpack_from("!IIBB", packet, start + 4)
    length = struct.unpack_from("!H", packet, 2)[0] - start - (offset >> 4) * 4
    return Segment(packet[12:20] + packet[start : start + 4], seq, ack, flags, length)


def _reset(way: bytes, seq: int, ack: int) -> bytes:
    segment = way[8:12] + struct.pack("!IIBBHHH", seq, ack, 5 << 4, RST | ACK, 0, 0, 0)
    sum_ = _checksum(way[:8] + struct.pack("!BBH", 0, TCP, len(segment)) + segment)
    segment = segment[:16] + sum_ + segment[18:]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, TCP, 0) + way[:8]
    return head[:10] + _checksum(head) + head[12:] + segment


def _checksum(data: bytes) -> bytes:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


class Wire:
    """Forwards packets and executes commands from standard input. Commands and replies are one line of JSON each."""

    def __init__(self, hosts: int) -> None:
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._driver, self.interface = _tun("parenv%d")
        subnet = f"{NETWORK}.{int(self.interface.removeprefix('parenv')) % 256}"
        self.addresses = [f"{subnet}.{number}" for number in range(1, hosts + 2)]
        _bring_up(self.interface, self.addresses[0])
        self._ends, self.namespaces = [], []
        for host in range(hosts):
            _checked(_C.unshare(CLONE_NEWNET | CLONE_NEWUTS))
            socket.sethostname(f"host{host}")
            end, interface = _tun("eth%d")
            _bring_up("lo", None)
            _bring_up(interface, self.addresses[host + 1])
            self._ends.append(end)
            self.namespaces += [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts")]
            _checked(_C.setns(home, CLONE_NEWNET))
        self._host_of = {socket.inet_aton(a): host for host, a in enumerate(self.addresses[1:])}
        self._to_driver = [Link() for _ in range(hosts)]
        self._from_driver = [Link() for _ in range(hosts)]
        self._flows = Flows()
        self._rng = random.Random(0)

    def run(self) -> None:
        """Forward packets until standard input ends."""
        poll = select.poll()
        for fd in (0, self._driver, *self._ends):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(self._patience_ms())}
            now = time.monotonic()
            # Packets that were sent before a command are not subject to it, so read all of them first.
            most = MAX_QUEUED if 0 in ready else PACKETS_AT_ONCE
            for host, end in [(-1, self._driver), *enumerate(self._ends)]:
                if end in ready:
                    self._take_in(host, end, now, most)
            self._hand_out(now)
            if 0 in ready:
                line = sys.stdin.readline()
                if not line:
                    return
                print(json.dumps(self._obey(**json.loads(line))), flush=True)

    def power_off(self, host: int) -> None:
        """Kill all processes on a host, including those that they start meanwhile."""
        while processes := self._processes(host):
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):
                    self._kill(host, pid)

    def _obey(self, do: str, host: int, direction: str = "both", **values: Any) -> Any:
        if do == "processes":
            return self._processes(host)
        if do == "power_off":
            return self.power_off(host)
        if do == "reset":
            connections, packets = self._flows.resets(socket.inet_aton(self.addresses[host + 1]))
            for packet in packets:
                self._deliver(packet)
            return connections
        for link in self._links(host, direction):
            for name, value in (UNDISTURBED if do == "heal" else values).items():
                setattr(link, name, value)
        return None

    def _links(self, host: int, direction: str) -> list[Link]:
        links = {"to_driver": self._to_driver, "from_driver": self._from_driver}
        return [link[host] for link in (links.values() if direction == "both" else [links[direction]])]

    def _patience_ms(self) -> float | None:
        heads = [link.queue[0][0] for link in (*self._to_driver, *self._from_driver) if link.queue]
        return max(0.0, min(heads) - time.monotonic()) * 1000 if heads else None

    def _take_in(self, host: int, end: int, now: float, most: int) -> None:
        for _ in range(most):
            try:
                packet = os.read(end, PACKET_BYTES)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue
            self._flows.taken_in(packet)
            if host >= 0:
                self._to_driver[host].offer(packet, now, self._rng)
            elif (to := self._host_of.get(packet[16:20])) is not None:
                self._from_driver[to].offer(packet, now, self._rng)

    def _hand_out(self, now: float) -> None:
        for link in self._to_driver:
            for packet in link.due(now):
                to = self._host_of.get(packet[16:20])
                if to is None:
                    self._deliver(packet)
                else:
                    self._from_driver[to].offer(packet, now, self._rng)
        for link in self._from_driver:
            for packet in link.due(now):
                self._deliver(packet)

    def _deliver(self, packet: bytes) -> None:
        to = self._host_of.get(packet[16:20])
        self._flows.delivered(packet)
        with contextlib.suppress(OSError):
            os.write(self._driver if to is None else self._ends[to], packet)

    def _processes(self, host: int) -> list[int]:
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if self._runs_on(host, path.name)]

    def _runs_on(self, host: int, pid: str | int) -> bool:
        try:
            return os.path.samestat(os.stat(f"/proc/{pid}/ns/net"), os.stat(self.namespaces[2 * host]))
        except OSError:
            return False

    def _kill(self, host: int, pid: int) -> None:
        fd = os.pidfd_open(pid)
        try:
            # The pid may have been reused since it was listed, so check it again. If it is reused from now on, the
            # descriptor still refers to the dead process.
            if self._runs_on(host, pid):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                if not select.select([fd], [], [], KILL_S)[0]:
                    raise TimeoutError(f"process {pid} does not die")
        finally:
            os.close(fd)


def _tun(name: str) -> tuple[int, str]:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd, request[:16].rstrip(b"\0").decode()


def _bring_up(interface: str, address: str | None) -> None:
    if address is not None:
        subprocess.run(["ip", "address", "add", f"{address}/{SUBNET}", "dev", interface], check=True)
    subprocess.run(["ip", "link", "set", interface, "up"], check=True)


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(hosts: int) -> None:
    """Report the interface, addresses and namespaces, then forward packets until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wire = Wire(hosts)
    try:
        started = {"interface": wire.interface, "addresses": wire.addresses, "namespaces": wire.namespaces}
        print(json.dumps(started), flush=True)
        wire.run()
    finally:
        for host in range(hosts):
            wire.power_off(host)


if __name__ == "__main__":
    main(int(sys.argv[1]))
