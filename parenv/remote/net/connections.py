"""TCP connections that ZeroMQ holds: their traffic according to the kernel, the limits on it, and counts of refusals.

ZeroMQ may close a connection at any time, and another file may then get its descriptor. Each function therefore
duplicates the descriptor first, and checks that it is a connection to the expected port.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from parenv.errors import embedded
from parenv.remote.net.host_keys import Known

UNKNOWN = "an unknown address"
MAX_STRANGERS = 256
"""Maximum number of connections that are not admitted yet. They do not count as hosts."""
STRANGER_BYTES = 1 << 16
"""Maximum number of bytes received over a connection that is not admitted."""
MOST_TO_STRANGERS = 256
"""Upper bound of the bytes sent to a peer before it is admitted: a greeting of 64, WELCOME of 170, an ERROR of 12. An
admitted peer gets READY instead of the ERROR, which is longer."""
OVERHEAD_BYTES = 64
"""Upper bound of the bytes that encryption and the head add to a message."""
_LAST_DATA_RECEIVED, _BYTES_ACKNOWLEDGED, _BYTES_RECEIVED, _END = 52, 120, 128, 136
"""Offsets in the kernel's ``struct tcp_info``, in bytes."""


class TcpTraffic(NamedTuple):
    """Traffic of a connection according to the kernel.

    Args:
        silent_s: Seconds since the last data arrived.
        received_bytes: Number of bytes that arrived, read or not.
        acknowledged_bytes: Number of sent bytes that the peer has acknowledged.
    """

    silent_s: float
    received_bytes: int
    acknowledged_bytes: int


@dataclass(frozen=True)
class Limits:
    """Limits on all connections.

    Args:
        connections: Maximum number of hosts.
        unread_bytes: Maximum number of unread bytes of one connection.
        all_unread_bytes: Maximum number of unread bytes of all connections.
    """

    connections: int
    unread_bytes: int
    all_unread_bytes: int


@dataclass
class Connection:
    """State of a connection.

    Args:
        port: Local port.
        peer: IP address of the peer.
        since_s: Monotonic time of its begin.
        judged: Number of connections that had been judged by then.

    Attributes:
        let_in: Whether the peer is known to be admitted.
        turned_away: Whether the connection is being closed.
        host: Host of the peer, known after its first message.
        read_bytes: Number of bytes read.
        ends_s: Monotonic time at which the connection must be closed.
    """

    port: int
    peer: str
    since_s: float
    judged: int
    let_in: bool = False
    turned_away: bool = False
    host: Known | None = None
    read_bytes: int = 0
    ends_s: float = math.inf
    _received_bytes: int = 0
    _overrated_bytes: int = 0

    def note(self, traffic: TcpTraffic) -> None:
        """Update the state from the kernel's data."""
        self.let_in = self.let_in or self.host is not None or traffic.acknowledged_bytes > MOST_TO_STRANGERS
        self._received_bytes = traffic.received_bytes
        # The size of a message on the network is an estimate. Its error must not add up to an allowance.
        self._overrated_bytes = max(self._overrated_bytes, self.read_bytes - self._received_bytes)

    @property
    def unread_bytes(self) -> int:
        """Estimated number of unread bytes."""
        return self._received_bytes + self._overrated_bytes - self.read_bytes


def surplus_strangers(live: Mapping[int, Connection]) -> list[int]:
    """Return the oldest connections beyond :data:`MAX_STRANGERS` that are not admitted."""
    strangers = [fd for fd, one in live.items() if not (one.let_in or one.turned_away)]
    return strangers[: max(0, len(strangers) - MAX_STRANGERS)]


def objections(live: Mapping[int, Connection], limits: Limits) -> dict[int, str]:
    """Return the connections that must be closed, with a reason of :data:`parenv.remote.net.admission.REASONS`.

    If there are too many hosts, the oldest without a message go first. If there are too many unread bytes, the
    connections with most of them go first. ``live`` has the connections by descriptor, the oldest one first.
    """
    staying = {fd: one for fd, one in live.items() if not one.turned_away}
    hosts = sorted((fd for fd, one in staying.items() if one.let_in), key=lambda fd: staying[fd].host is not None)
    too_many = hosts[: max(0, len(hosts) - limits.connections)]
    unread = {fd: one.unread_bytes for fd, one in staying.items()}
    found = {fd: "stranger" for fd in staying if fd not in hosts and unread[fd] > STRANGER_BYTES}
    found |= dict.fromkeys(too_many, "too many connections")
    total = sum(unread.values())
    for fd in sorted(hosts, key=lambda fd: -unread[fd]):
        if unread[fd] > limits.unread_bytes or total > limits.all_unread_bytes:
            found.setdefault(fd, "unread")
            total -= unread[fd]
    return found


def peer_of(fd: int, port: int) -> str:
    """Return the IP address of the peer, or :data:`UNKNOWN` after the connection has ended."""
    with contextlib.suppress(OSError), _own(fd, port) as connection:
        return str(connection.getpeername()[0])
    return UNKNOWN


def shut(fd: int, port: int) -> None:
    """Shut down a connection in both directions; ZeroMQ notices at once."""
    with contextlib.suppress(OSError), _own(fd, port) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def traffic(fd: int, port: int) -> TcpTraffic:
    """Return the traffic of a connection, or zeros if the system does not report it."""
    with contextlib.suppress(OSError, AttributeError, struct.error), _own(fd, port) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _END)
        (silent_ms,) = struct.unpack_from("=I", info, _LAST_DATA_RECEIVED)
        acknowledged_bytes, received_bytes = struct.unpack_from("=QQ", info, _BYTES_ACKNOWLEDGED)
        return TcpTraffic(silent_ms / 1000, received_bytes, acknowledged_bytes)
    return TcpTraffic(0.0, 0, 0)


@contextlib.contextmanager
def _own(fd: int, port: int) -> Iterator[socket.socket]:
    """Duplicate the descriptor of a connection.

    Raises:
        OSError: The descriptor is closed, or is not a connection with this local or remote port.
    """
    # ZeroMQ may close the descriptor at any time. Its duplicate refers to the same connection until it is closed here.
    copy = os.dup(fd)
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            raise OSError("the descriptor has been closed and belongs to another file")
        if port not in (connection.getsockname()[1], connection.getpeername()[1]):
            raise OSError("the descriptor has been closed and belongs to another connection")
        yield connection


_log = logging.getLogger("parenv")


class Refusals:
    """Counts refusals by reason, and limits what they write to the log.

    Args:
        most_logged: Maximum number of log entries. Default: no limit.

    Attributes:
        counts: Number of refusals by reason.
    """

    def __init__(self, most_logged: float = math.inf) -> None:
        self.counts: Counter[str] = Counter()
        self._most_logged = most_logged
        self._logged: set[tuple[str, str]] = set()

    def note(self, reason: str, peer: str, text: str) -> None:
        """Log a refusal if it is the first for this reason and peer, then count it."""
        self.log_once(reason, peer, logging.WARNING, f"{embedded(text)}. Further ones like it are only counted.")
        self.counts[reason] += 1

    def log_once(self, reason: str, peer: str, level: int, text: str) -> None:
        """Log a text if it is the first for this reason and peer, and the log has space for it."""
        # A peer can cause any number of refusals, which must not fill the log.
        if (reason, peer) not in self._logged and len(self._logged) < self._most_logged:
            self._logged.add((reason, peer))
            _log.log(level, "%s", text)
