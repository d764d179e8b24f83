"""Admission of hosts, in a thread that also runs while the main process learns.

The thread has two sources. pyzmq's authenticator asks whether the holder of a key may join. The monitor of the listener
reports connections that begin and end, also those without a key.
"""

from __future__ import annotations

import contextlib
import logging
import math
import struct
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Literal

import zmq
from zmq.auth import Authenticator

from parenv.errors import ConfigurationError
from parenv.process.descriptors import free_descriptors
from parenv.process.wake_up import WakeUp
from parenv.remote.net import tcp
from parenv.remote.net.connections import Refusals, peer_of, shut
from parenv.remote.net.host_keys import AllowList

MAX_STRANGERS = 256
"""Maximum number of connections without a message of a host. They do not count as hosts."""
CHECK_MS = 1000
"""Milliseconds between two checks of the allow list."""
LAST_MESSAGE_S = 2.0
"""Seconds for which a dismissed connection stays open, so that the last message arrives."""
MAX_EVENTS_AT_ONCE = 64
REASONS = {
    "handshake": "it has not identified itself as a host of this driver: it has no key, has the key file of another "
    "driver, took too long, or is another program",
    "key": "its key is not in the list of hosts that may join",
    "allow list": "the list of hosts that may join cannot be read now",
    "too many connections": "max_connections hosts are connected already",
    "too many strangers": "it had not identified itself, and too many others have not either",
    "sequence": "some of its messages are missing: its connection broke, its data was changed on the way, or it is not "
    "a host of parenv",
}
_EVENT = struct.Struct("=HI")
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_log = logging.getLogger("parenv")
# pyzmq's own log would show public keys.
_NO_LOG = logging.Logger("zmq.auth", logging.CRITICAL + 1)


@dataclass
class Connection:
    """State of a connection.

    Args:
        port: Local port.
        peer: IP address of the peer.

    Attributes:
        has_sent: Whether a host has sent a message over it.
        key: Public key of the host, known after its first message, if it may stay.
        ends_s: Monotonic time at which the connection must be closed.
        is_closing: Whether it is being closed.
    """

    port: int
    peer: str
    has_sent: bool = False
    key: bytes = b""
    ends_s: float = math.inf
    is_closing: bool = False

    @property
    def is_stranger(self) -> bool:
        """True if no host has sent a message over this connection."""
        return not self.has_sent and not self.is_closing


class Admission:
    """Admits the hosts of the allow list only, and limits the connections of other peers.

    The listener must be bound afterwards: until then, ZeroMQ would admit every peer. The context must have a single I/O
    thread, so that the begin and the end of a connection are reported in this order.

    Args:
        context: ZeroMQ context of the listener.
        listener: CURVE server, not bound yet.
        allowed: Hosts that may join.
        max_connections: Maximum number of hosts.

    Attributes:
        refusals: Refused peers by reason, see :data:`REASONS`.
        ended: Number of connections of hosts that have ended.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        listener: zmq.Socket[bytes],
        allowed: AllowList,
        max_connections: int,
    ) -> None:
        # Connections that are being closed count as well. The hard limit may be lower, and cannot be raised.
        free_descriptors(2 * (max_connections + MAX_STRANGERS))
        self.refusals = Refusals()
        self.ended = 0
        self._allowed, self._max_connections = allowed, max_connections
        self._live: dict[int, Connection] = {}
        self._judged = self._named = self._unheard = 0
        self._counting = threading.Lock()
        self._address = ""
        self._authenticator = Authenticator(context, log=_NO_LOG)
        self._authenticator.configure_curve_callback(tcp.ZAP_DOMAIN, self)
        self._authenticator.start()
        self._monitor = tcp.monitor_of(context, listener, _EVENTS)
        self._wake_up, self._ending = WakeUp(), WakeUp()
        self._thread = threading.Thread(target=self._run, name="parenv admission", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """Number of open connections, of hosts and others."""
        return len(self._live)

    def fileno(self) -> int:
        """Readable when a connection of a host has ended, until :meth:`take`."""
        return self._wake_up.fileno()

    def take(self) -> None:
        """Reset :meth:`fileno`; call only while it is readable."""
        self._wake_up.take()

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether the holder of a public key may join. pyzmq's authenticator calls this method."""
        self._judged += 1
        return bool(self._name_of(key, self._address))

    def first_message(self, fd: int, key: bytes, peer: str) -> str:
        """Return the name of the host whose first message has come, or an empty text if it may not stay.

        Args:
            fd: Descriptor of its connection.
            key: Public key of the host.
            peer: IP address of the host.
        """
        # The connection may end now. The thread must find it either as a stranger, or counted here.
        with self._counting:
            if (connection := self._live.get(fd)) is not None:
                connection.has_sent = True
                self._named += 1
        # The thread changes the dict meanwhile. copy() is atomic under the GIL.
        if sum(bool(one.key) for one in self._live.copy().values()) >= self._max_connections:
            return self._refuse("too many connections", peer)
        # The host may have been removed from the list since it was admitted.
        return self._name_of(key, peer)

    def heard(self, fd: int, key: bytes) -> None:
        """Count a connection, from which a message has come, as the connection of a host."""
        if (connection := self._live.get(fd)) is not None:
            connection.key = key

    def expel(self, fd: int, peer: str, reason: str = "") -> None:
        """Close a connection, and count it for one of :data:`REASONS` if it was not counted before."""
        if reason:
            self._refuse(reason, peer)
        if (connection := self._live.get(fd)) is not None:
            self._shut(fd, connection)

    def dismiss(self, fd: int) -> None:
        """Close a connection after :data:`LAST_MESSAGE_S`."""
        if (connection := self._live.get(fd)) is not None:
            connection.ends_s = time.monotonic() + LAST_MESSAGE_S

    def close(self) -> None:
        """End the thread. Call after closing the listener. Idempotent."""
        if self._thread.is_alive():
            self._ending.notify()
            self._thread.join()
        self._authenticator.stop()
        self._monitor.close(0)
        for wake_up in (self._wake_up, self._ending):
            wake_up.close()

    def _run(self) -> None:
        zap, ending = self._authenticator.zap_socket, self._ending.fileno()
        poller, checked_s = zmq.Poller(), time.monotonic()
        for source in (zap, self._monitor, ending):
            poller.register(source, zmq.POLLIN)
        while ending not in (ready := dict(poller.poll(CHECK_MS if self._live else None))):
            try:
                # The order matters: a connection must be known before its key is judged.
                self._follow()
                if zap in ready:
                    self._judge()
                if time.monotonic() - checked_s > CHECK_MS / 1000:
                    checked_s = time.monotonic()
                    self._check()
            except Exception:
                # If this thread ended, no host could join, and connections would have no bounds.
                text = "an error in the admission of hosts, which continues. Report it as a bug:\n%s"
                _log.error(text, traceback.format_exc())  # As text: a handler may keep the exception.

    def _judge(self) -> None:
        """Have the authenticator answer whether the holder of a key may join."""
        request = self._authenticator.zap_socket.recv_multipart()
        self._address = request[3].decode(errors="replace")
        # The authenticator waits for nothing, so its coroutine ends in the first step.
        with contextlib.suppress(StopIteration):
            self._authenticator.handle_zap_message(request).send(None)

    def _name_of(self, key: bytes, peer: str) -> str:
        """Return the name of the host with a key, or refuse it and return an empty text."""
        try:
            return self._allowed.name_of(key) or self._refuse("key", peer)
        except ConfigurationError as error:
            return self._refuse("allow list", peer, f": {error}")

    def _refuse(self, reason: str, peer: str, detail: str = "") -> Literal[""]:
        self.refusals.note(reason, peer, f"refused a connection from {peer}: {REASONS[reason]}{detail}")
        return ""

    def _shut(self, fd: int, connection: Connection) -> None:
        connection.is_closing = True
        shut(fd, connection.port)

    def _check(self) -> None:
        """Close connections of hosts that were removed from the allow list, and those that were dismissed."""
        now, live = time.monotonic(), [(fd, one) for fd, one in self._live.items() if not one.is_closing]
        removed = self._allowed.removed({one.key for _, one in live if one.key})
        for fd, connection in live:
            if connection.key in removed:
                self.expel(fd, connection.peer, "key")
            elif now > connection.ends_s:
                self._shut(fd, connection)

    def _follow(self) -> None:
        """Process events of connections, and close the oldest of too many that are not of hosts."""
        for _ in range(MAX_EVENTS_AT_ONCE):
            try:
                packed, endpoint = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            event, fd = _EVENT.unpack(packed)
            self._take_in(event, fd, int(endpoint.rpartition(b":")[2]))
        strangers = [(fd, one) for fd, one in self._live.items() if one.is_stranger]
        for fd, connection in strangers[:-MAX_STRANGERS]:
            self.expel(fd, connection.peer, "too many strangers")

    def _take_in(self, event: int, fd: int, port: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._live[fd] = Connection(port, peer_of(fd, port))
            return
        with self._counting:
            if (ended := self._live.pop(fd, None)) is None:
                return
            is_unjudged = False
            if ended.is_stranger:
                # The events do not report whether a key was judged over this connection. If as many keys were judged
                # as hosts have sent a message or were gone before, none was.
                is_unjudged = self._judged == self._named + self._unheard
                self._unheard += not is_unjudged
        if is_unjudged:
            self._refuse("handshake", ended.peer)
            return
        self.ended += 1
        self._wake_up.notify()
