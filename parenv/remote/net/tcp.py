"""Sockets of the main process and of hosts, for TCP with CURVE encryption, and the state of a host's connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import zmq

from parenv.errors import ProtocolError
from parenv.remote.net.host_keys import DriverKeys, HostKeys

HANDSHAKE_S = 5.0
"""Maximum duration of a handshake, in seconds."""
OVERHEAD_BYTES = 64
"""Upper bound of the bytes that encryption and the head add to a message."""
MAX_UNSENT = 1 << 16
RECONNECT_MS, CONNECT_TIMEOUT_MS = 200, 750
ZAP_DOMAIN = "parenv"


def listening_socket(
    context: zmq.Context[zmq.Socket[bytes]], keys: DriverKeys, max_message_bytes: int, silence_s: float
) -> zmq.Socket[bytes]:
    """Create the main process's socket. Configure it, create its admission, then bind it."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    socket.zap_domain = ZAP_DOMAIN.encode()
    # Without this option, ZeroMQ would admit every peer while admission does not answer.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.maxmsgsize = max_message_bytes + OVERHEAD_BYTES
    socket.sndhwm = MAX_UNSENT
    _set_heartbeats(socket, silence_s)
    return socket


def connecting_socket(context: zmq.Context[zmq.Socket[bytes]], keys: HostKeys, silence_s: float) -> zmq.Socket[bytes]:
    """Create a host's socket. Configure it, then connect it."""
    socket = context.socket(zmq.DEALER)
    socket.curve_serverkey = keys.driver_public
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    # Without these limits, the system would try to reconnect less and less often.
    socket.reconnect_ivl, socket.connect_timeout = RECONNECT_MS, CONNECT_TIMEOUT_MS
    # The window limits what is sent. ZeroMQ's own limit is updated late, and would refuse messages within the window.
    socket.sndhwm = 0
    _set_heartbeats(socket, silence_s)
    return socket


def _set_heartbeats(socket: zmq.Socket[bytes], silence_s: float) -> None:
    silence_ms = round(silence_s * 1000)
    socket.heartbeat_ivl, socket.heartbeat_ttl = silence_ms // 5, silence_ms
    # The first missed heartbeat is sent up to one interval after the connection was cut.
    socket.heartbeat_timeout = silence_ms * 4 // 5
    # If ZeroMQ stopped reading from a peer with many unread messages, and the peer died, the next heartbeat would abort
    # this process. So there is no limit here: the window limits what a host sends.
    socket.rcvhwm = 0


def configure(socket: zmq.Socket[bytes], address: str) -> None:
    """Set the options of both ends on a socket that will be bound or connected to an address."""
    socket.linger = 0
    socket.ipv6 = "[" in address
    socket.handshake_ivl = round(HANDSHAKE_S * 1000)


def monitor_of(context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """Return a socket that receives the events of the connections of a socket, the only monitor of its context.

    ``EVENT_HANDSHAKE_FAILED_PROTOCOL`` must not be among them. ZeroMQ also reports it for later frames that it cannot
    decrypt. The report changes errno before ZeroMQ reads it, so that ZeroMQ keeps the connection instead of closing it.
    """
    monitor = context.socket(zmq.PAIR)
    # With a limit, ZeroMQ would wait until events are read, also while the monitor is disabled, which holds the GIL.
    monitor.linger = monitor.rcvhwm = 0
    socket.monitor("inproc://parenv.monitor", events)
    monitor.connect("inproc://parenv.monitor")
    return monitor


def close_monitored(socket: zmq.Socket[bytes], linger_s: float = 0.0) -> None:
    """Close a socket with a monitor. Sent messages have up to ``linger_s`` seconds to leave."""
    # If the monitor were closed before, ZeroMQ would wait forever to report an event.
    socket.disable_monitor()
    socket.close(round(linger_s * 1000))


def received(socket: zmq.Socket[bytes]) -> list[zmq.Frame] | None:
    """Return the frames of the next message, or ``None``."""
    try:
        return socket.recv_multipart(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None


def only(frames: Sequence[zmq.Frame]) -> memoryview:
    """Return the content of a message, which must have one frame.

    Raises:
        ProtocolError: It does not have one frame.
    """
    if len(frames) != 1:
        raise ProtocolError("a message over the network must be in one frame")
    return frames[0].buffer


State = Literal["connecting", "connected", "refused", "lost"]
EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Link:
    """A connection that is made once. After ``refused`` or ``lost``, its state does not change.

    >>> link = Link()
    >>> link.take_in(zmq.EVENT_HANDSHAKE_SUCCEEDED), link.take_in(zmq.EVENT_DISCONNECTED)
    ('connected', 'lost')

    Attributes:
        state: State of the connection.
        broken_handshakes: Number of handshakes that the peer has aborted. More than two mean that the key file belongs
            to another main process, or that this one has too many connections.
    """

    def __init__(self) -> None:
        self.state: State = "connecting"
        self.broken_handshakes = 0
        self._will_try_again = False

    def take_in(self, event: int) -> State:
        """Process one of :data:`EVENTS`. Returns the new state."""
        if self.state == "connected" and event == zmq.EVENT_DISCONNECTED:
            self.state = "lost"
        elif self.state == "connecting":
            self._take_in_handshake(event)
        return self.state

    def _take_in_handshake(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.state = "connected"
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self.broken_handshakes += 1
            self._will_try_again = True
        elif event == zmq.EVENT_DISCONNECTED and self._will_try_again:
            self._will_try_again = False
        else:
            # If the peer does not speak ZeroMQ's protocol, this event is the only one.
            self.state = "refused"
