"""The sockets of both ends of a connection over TCP, and what they have in common."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Sequence

import zmq
from zmq.backend.cython import _zmq

from parenv.errors import ProtocolError
from parenv.remote.net.host_keys import DriverKeys, HostKeys
from parenv.remote.net.limits import OVERHEAD_BYTES, Limits
from parenv.remote.net.window import WINDOW, WINDOW_BYTES

HANDSHAKE_S = 5.0
"""How long either side may take to identify itself."""
MAX_UNSENT = 1 << 16
RECONNECT_MS, CONNECT_TIMEOUT_MS = 200, 750


def limits(max_connections: int, max_message_bytes: int) -> Limits:
    """What hosts may open and send; each may fill its window, but not all of them with large messages.

    Args:
        max_connections: how many hosts may be connected.
        max_message_bytes: the largest message of one.
    """
    return Limits(
        connections=max_connections,
        unread_bytes=max_message_bytes + 2 * WINDOW_BYTES,
        all_unread_bytes=WINDOW * max_message_bytes + max_connections * WINDOW_BYTES,
    )


def listening_socket(
    context: zmq.Context[zmq.Socket[bytes]], keys: DriverKeys, max_message_bytes: int
) -> zmq.Socket[bytes]:
    """The socket of a driver, to be configured and bound; admission must be there before."""
    # ZeroMQ counts identities up from C's rand(), which nobody seeds. A host that knows the next one can choose it for
    # itself, and ZeroMQ then aborts this process.
    ctypes.CDLL(None).srand(secrets.randbits(32))
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    socket.zap_domain = b"parenv"
    # Without this, ZeroMQ would let everybody in while nobody answers its questions.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.maxmsgsize = max_message_bytes + OVERHEAD_BYTES
    # More than the window, since ZeroMQ learns only at every half of this how far has been read.
    socket.rcvhwm, socket.sndhwm = 3 * WINDOW, MAX_UNSENT
    return socket


def connecting_socket(context: zmq.Context[zmq.Socket[bytes]], keys: HostKeys, silence_s: float) -> zmq.Socket[bytes]:
    """The socket of a host, to be configured and connected."""
    socket = context.socket(zmq.DEALER)
    socket.curve_serverkey = keys.driver_public
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    # Or the system would ask a network that was cut for a while ever more seldom.
    socket.reconnect_ivl, socket.connect_timeout = RECONNECT_MS, CONNECT_TIMEOUT_MS
    # The window is the bound: ZeroMQ's own learns late of what is gone, and would refuse what there is room for.
    socket.sndhwm = 0
    # Heartbeats abort the process if ZeroMQ ever stops reading, so it never does: the driver is trusted.
    socket.rcvhwm = 0
    silence_ms = round(silence_s * 1000)
    socket.heartbeat_ivl, socket.heartbeat_ttl = silence_ms // 5, silence_ms
    # A heartbeat is sent at the latest one interval after the cut, and then missed for so long.
    socket.heartbeat_timeout = silence_ms * 4 // 5
    return socket


def configure(socket: zmq.Socket[bytes], address: str) -> None:
    """Set what both ends have in common.

    Args:
        socket: not yet bound or connected.
        address: where it will be.
    """
    socket.linger = 0
    socket.ipv6 = "[" in address
    socket.handshake_ivl = round(HANDSHAKE_S * 1000)


def close_monitored(socket: zmq.Socket[bytes], linger_s: float) -> None:
    """Close a socket whose events somebody follows; what was sent is sent on for so many seconds at most."""
    # ZeroMQ would wait for ever to report an event to a monitor that is closed before the socket is gone. Ending the
    # monitor waits until an event in progress has been reported. disable_monitor() holds the GIL meanwhile, which
    # the thread that reads events needs if so many wait that no more can be reported.
    ctypes.CDLL(_zmq.__file__).zmq_socket_monitor(ctypes.c_void_p(socket.underlying), None, 0)
    socket.close(round(linger_s * 1000))


def received(socket: zmq.Socket[bytes]) -> list[zmq.Frame] | None:
    """The frames of the next message, or ``None``."""
    try:
        return socket.recv_multipart(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None


def only(frames: Sequence[zmq.Frame]) -> memoryview:
    """What is in the frame of a message that must have only one.

    Raises:
        ProtocolError: it has none, or several.
    """
    if len(frames) != 1:
        raise ProtocolError("a message over the network is not in one frame")
    return frames[0].buffer
