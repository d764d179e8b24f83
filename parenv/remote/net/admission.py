"""Admission of hosts, in a thread that also runs while the main process learns.

The thread has two sources. ZeroMQ asks whether the holder of a key may join (ZAP, RFC 27). The monitor of the listener
reports connections that begin and end, also those without a key.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
import traceback

import zmq
from zmq.utils import z85

from parenv.errors import ConfigurationError
from parenv.process.descriptors import free_descriptors
from parenv.process.wake_up import WakeUp
from parenv.remote.net import tcp
from parenv.remote.net.connections import (
    MAX_STRANGERS,
    OVERHEAD_BYTES,
    UNKNOWN,
    Connection,
    Limits,
    Refusals,
    objections,
    peer_of,
    shut,
    surplus_strangers,
    traffic,
)
from parenv.remote.net.host_keys import AllowList, Known

ZAP_ADDRESS = "inproc://zeromq.zap.01"
MAX_LOGGED = 1000
CHECKS = 4
"""Number of checks per ``silence_s``, so that a silent connection is found in the last quarter."""
INTERVAL_S, STRANGER_INTERVAL_S = 0.25, 0.05
"""Seconds between two checks of the traffic: if all connections are admitted, and otherwise."""
LAST_MESSAGE_S = 2.0
"""Seconds for which a dismissed connection stays open, so that the last message arrives."""
MAX_EVENTS_AT_ONCE = 64
MAX_EVENTS_WAITING = 1001
"""Number of unread events at which ZeroMQ stops accepting connections."""
_SENT_AHEAD = 1000
"""Number of events that ZeroMQ keeps at its own end. It cannot be set."""
REASONS = {
    "handshake": "it does not identify itself as a host of this driver: it has no key, has the key file of another "
    "driver, or is another program",
    "key": "its key is not in the list of hosts that may join",
    "gone": "it disconnected before it had identified itself",
    "timeout": "it took too long to identify itself",
    "too many connections": "max_connections hosts are connected already",
    "too many of a key": "its key already uses half of max_connections, and other keys are listed",
    "too many strangers": "it had not identified itself, and too many others have not either",
    "allow list": "the list of hosts that may join cannot be read now",
    "identity": "it chose an identity, which hosts of parenv do not do",
    "sequence": "some of its messages are missing: its connection broke, its data was changed on the way, or it is not "
    "a host of parenv",
    "stranger": "it sends more data than an identification needs, and has not identified itself",
    "unread": "it sends a message without an end, or more messages than may wait to be read",
}
_EVENT = struct.Struct("=HI")
_EVENTS = (
    zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
# EVENT_HANDSHAKE_FAILED_PROTOCOL must not be added. ZeroMQ also reports it for later frames that it cannot decrypt. The
# report changes errno before ZeroMQ reads it, so that ZeroMQ keeps the connection instead of closing it.


def host_of(user: str) -> Known:
    """Return the host of a connection from the ``User-Id`` that :class:`Admission` has assigned."""
    name, _, public = user.partition(" ")
    return Known(name, public.encode())


class Admission:
    """Admits the hosts of the allow list only, and closes connections that break the limits.

    The context must have a single I/O thread, so that the events of a failed handshake come without others in between.
    The listener must be bound afterwards: until then, ZeroMQ would admit every peer.

    Admission also closes silent connections. ZeroMQ's heartbeats cannot do this: if a host dies while ZeroMQ does not
    read from it, they abort the process. Hosts must therefore send something within ``silence_s``.

    Args:
        context: ZeroMQ context of the listener.
        listener: CURVE server, not bound yet.
        allowed: Hosts that may join.
        limits: Limits on connections.
        silence_s: Seconds after which a silent connection is closed.

    Attributes:
        refusals: Number of refused peers by reason, see :data:`REASONS`.
        ended: Number of admitted connections that have ended. It may include some that were not admitted.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        listener: zmq.Socket[bytes],
        allowed: AllowList,
        *,
        limits: Limits,
        silence_s: float,
    ) -> None:
        # Connections that are being closed count as well. The hard limit may be lower, and cannot be raised.
        free_descriptors(2 * (limits.connections + MAX_STRANGERS + MAX_EVENTS_WAITING + MAX_EVENTS_AT_ONCE))
        self._refusals = Refusals(MAX_LOGGED)
        self.refusals = self._refusals.counts
        self.ended = 0
        self._allowed = allowed
        self._limits = limits
        self._silence_s = silence_s
        self._live: dict[int, Connection] = {}
        self._failure = ""
        self._judged = 0
        self._let_in: set[Known] = set()
        self._wake_up = WakeUp()
        self._told = False
        self._zap = context.socket(zmq.ROUTER)
        self._zap.linger = 0
        self._zap.bind(ZAP_ADDRESS)
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.linger = 0
        self._monitor.rcvhwm = MAX_EVENTS_WAITING - _SENT_AHEAD
        listener.monitor("inproc://parenv.monitor", _EVENTS)
        self._monitor.connect("inproc://parenv.monitor")
        self._ending = WakeUp()
        self._thread = threading.Thread(target=self._run, name="parenv admission", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """Number of open connections, admitted or not."""
        return len(self._live)

    def fileno(self) -> int:
        """Readable when a connection has ended, until :meth:`take`."""
        return self._wake_up.fileno()

    def take(self) -> None:
        """Reset :meth:`fileno`; call only while it is readable."""
        # The order matters: a connection that ends in between is reported by this wake-up or the next.
        self._told = False
        self._wake_up.take()

    def refuse(self, reason: str, peer: str, detail: str = "") -> None:
        """Log a refusal if it is the first for this reason and IP address, then count it."""
        why = f"{REASONS[reason]}: {detail}" if detail else REASONS[reason]
        self._refusals.note(reason, peer, f"refused a connection from {peer}: {why}")

    def expel(self, reason: str, fd: int, peer: str) -> None:
        """Close an admitted connection, unless it is closed already, for one of :data:`REASONS`."""
        self.refuse(reason, peer)
        connection = self._live.get(fd)
        if connection is not None and connection.peer in (peer, UNKNOWN):
            shut(fd, connection.port)

    def dismiss(self, fd: int) -> None:
        """Close a connection after :data:`LAST_MESSAGE_S`."""
        if (connection := self._live.get(fd)) is not None:
            connection.ends_s = time.monotonic() + LAST_MESSAGE_S

    def objection(self, host: Known, is_first: bool) -> str:
        """Return the reason to drop a message of an admitted host, one of :data:`REASONS`, or an empty text.

        Args:
            host: Sender of the message.
            is_first: Whether it is the first message of its connection. Only this message tells which connection must
                be closed when the key is removed.
        """
        if host not in self._let_in:
            return "key"
        if not is_first:
            return ""
        try:
            if self._allowed.name_of(host.public) != host.name:
                return "key"
            has_others = len(self._allowed) > 1
        except ConfigurationError:
            return "allow list"
        # The thread of the admission changes the dict meanwhile. copy() is atomic under the GIL.
        by_it = sum(one.host == host and not one.turned_away for one in self._live.copy().values())
        return "too many of a key" if has_others and 2 * by_it >= max(2, self._limits.connections) else ""

    def heard(self, fd: int, host: Known, nbytes: int) -> None:
        """Count a message of a host as read."""
        if (connection := self._live.get(fd)) is not None:
            connection.host = host
            connection.read_bytes += nbytes + OVERHEAD_BYTES

    def close(self) -> None:
        """End the thread. Call after closing the listener. Idempotent."""
        if self._thread.is_alive():
            self._ending.notify()
            self._thread.join()
        for ours in (self._zap, self._monitor):
            ours.close(0)
        for wake_up in (self._wake_up, self._ending):
            wake_up.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        for ours in (self._zap, self._monitor):
            poller.register(ours, zmq.POLLIN)
        poller.register(self._ending.fileno(), zmq.POLLIN)
        checked_s = time.monotonic()
        while self._ending.fileno() not in (ready := dict(poller.poll(self._interval_ms() if self._live else None))):
            try:
                # The order matters: a connection must be known before its key is judged.
                self._follow()
                if self._zap in ready:
                    self._answer(self._zap.recv_multipart())
                if time.monotonic() - checked_s > self._interval_ms() / 1000:
                    checked_s = time.monotonic()
                    self._look_at_traffic()
                    self._end_the_removed()
            except Exception:
                # If this thread ended, no host could join, and connections would have no bounds.
                text = "an error in the checks of connections, which continue. Report it as a bug:\n"
                raised = traceback.format_exc()
                self._refusals.log_once("", raised, logging.ERROR, text + raised)

    def _interval_ms(self) -> int:
        """Return the time until the next check of the traffic."""
        are_strangers = not all(connection.let_in for connection in self._live.values())
        interval_s = STRANGER_INTERVAL_S if are_strangers else INTERVAL_S
        return round(1000 * min(interval_s, self._silence_s / CHECKS))

    def _answer(self, request: list[bytes]) -> None:
        """Tell ZeroMQ whether the holder of a key may join."""
        routing_id, empty, version, number, _, address, _, mechanism, *credentials = request
        user, code, refusal, detail = "", b"400", "handshake", ""
        if mechanism == b"CURVE" and len(credentials) == 1:
            public, refusal = z85.encode(credentials[0]), "key"
            try:
                if name := self._allowed.name_of(public):
                    user, code, refusal = f"{name} {public.decode()}", b"200", ""
                    self._let_in.add(Known(name, public))
            except ConfigurationError as error:
                # After code 300, ZeroMQ sends no answer, and the peer tries again.
                code, refusal, detail = b"300", "allow list", str(error)
        if refusal:
            self._judged += 1
            self.refuse(refusal, address.decode(errors="replace"), detail)
        self._zap.send_multipart([routing_id, empty, version, number, code, b"", user.encode(), b""])

    def _turn_away(self, fd: int, reason: str) -> None:
        connection = self._live[fd]
        connection.turned_away = True
        self.refuse(reason, connection.peer)
        shut(fd, connection.port)

    def _end_the_removed(self) -> None:
        """Close connections of hosts that were removed from the allow list."""
        removed = self._allowed.removed(self._let_in)
        self._let_in -= removed
        for fd, connection in self._live.items():
            if connection.host in removed and not connection.turned_away:
                self._turn_away(fd, "key")

    def _look_at_traffic(self) -> None:
        for fd, connection in self._live.items():
            if not connection.turned_away:
                self._look_at(fd, connection)
        for fd, reason in objections(self._live, self._limits).items():
            self._turn_away(fd, reason)

    def _look_at(self, fd: int, connection: Connection) -> None:
        now = traffic(fd, connection.port)
        connection.note(now)
        # If the peer is not admitted, ZeroMQ closes the connection when the handshake takes too long.
        is_silent = connection.let_in and now.silent_s > self._silence_s * (CHECKS - 1) / CHECKS
        if is_silent or time.monotonic() > connection.ends_s:
            shut(fd, connection.port)

    def _follow(self) -> None:
        """Process events of connections, and close connections that are too many and not admitted."""
        for _ in range(MAX_EVENTS_AT_ONCE):
            try:
                packed, endpoint = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            event, value = _EVENT.unpack(packed)
            self._take_in(event, value, endpoint)
        for fd in surplus_strangers(self._live):
            self._look_at(fd, self._live[fd])
            if not self._live[fd].let_in:
                self._turn_away(fd, "too many strangers")

    def _take_in(self, event: int, value: int, endpoint: bytes) -> None:
        if event == zmq.EVENT_ACCEPTED:
            port = int(endpoint.rpartition(b":")[2])
            self._live[value] = Connection(port, peer_of(value, port), time.monotonic(), self._judged)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._judged += 1
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._failure = "gone"
        elif event == zmq.EVENT_DISCONNECTED:
            failure, self._failure = self._failure, ""
            if value in self._live:
                self._end(self._live.pop(value), failure)

    def _end(self, connection: Connection, failure: str) -> None:
        """Process the end of a connection.

        The events do not report whether the peer was admitted. If no peer was judged since it came, it was not.
        """
        if failure == "gone" and time.monotonic() - connection.since_s > tcp.HANDSHAKE_S / 2:
            failure = "timeout"
        if not failure and connection.judged == self._judged:
            failure = "handshake"
        if failure:
            if not connection.turned_away:
                self.refuse(failure, connection.peer)
            return
        self.ended += 1
        if not self._told:
            self._told = True
            self._wake_up.notify()
