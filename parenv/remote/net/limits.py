"""Which connections are too many, or bring more than they may: pure decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from parenv.remote.net.connections import TcpTraffic
from parenv.remote.net.host_keys import Known

MAX_STRANGERS = 256
"""How many connections may be open that have not been let in; they are counted apart from hosts."""
STRANGER_BYTES = 1 << 16
"""What may come of one that has not been let in."""
MOST_TO_STRANGERS = 256
"""Bytes that a driver says at most before it lets a peer in: a greeting of 64, WELCOME of 170, an ERROR of 12. With the
READY that follows instead, it is more."""
OVERHEAD_BYTES = 64
"""What encryption adds to a message, and its head."""


@dataclass(frozen=True)
class Limits:
    """What is allowed.

    Args:
        connections: of hosts, all together.
        unread_bytes: that have come over one connection and wait to be read.
        all_unread_bytes: likewise, over all connections.
    """

    connections: int
    unread_bytes: int
    all_unread_bytes: int


@dataclass
class Connection:
    """What is known of a connection.

    Args:
        port: at this end.
        peer: IP address of the other end.
        since_s: when it began.
        judged: how many of all connections had been judged by then.

    Attributes:
        let_in: whether it has surely been let in.
        turned_away: whether it is being ended.
        host: whose it is, as soon as a message has been read.
        read_bytes: how much has been read of it.
        ends_s: when it is to be ended, on the monotonic clock.
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
        """Take note of what the kernel knows of it."""
        self.let_in = self.let_in or self.host is not None or traffic.acknowledged_bytes > MOST_TO_STRANGERS
        self._received_bytes = traffic.received_bytes
        # What a message took on its way is only known roughly, and the difference must not add up to an allowance.
        self._overrated_bytes = max(self._overrated_bytes, self.read_bytes - self._received_bytes)

    @property
    def unread_bytes(self) -> int:
        """How much has come and waits to be read, roughly."""
        return self._received_bytes + self._overrated_bytes - self.read_bytes


def surplus_strangers(live: Mapping[int, Connection]) -> list[int]:
    """The oldest of those that have not been let in, as many as there are too many."""
    strangers = [fd for fd, one in live.items() if not (one.let_in or one.turned_away)]
    return strangers[: max(0, len(strangers) - MAX_STRANGERS)]


def objections(live: Mapping[int, Connection], limits: Limits) -> dict[int, str]:
    """Which connections are to be ended, and why, one of :data:`parenv.remote.net.admission.REASONS`.

    Of hosts that are too many, those go first that have said nothing that was read, the oldest first. Of all that wait
    to be read, the largest parts go first.

    Args:
        live: all that are open, by descriptor, in the order in which they came.
        limits: what is allowed.
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
