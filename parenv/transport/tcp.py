"""What both ends of a connection over TCP have in common."""

from __future__ import annotations

import re

import zmq

from parenv.errors import ConfigurationError
from parenv.protocol.data import Buffer

BIG_BYTES = 1 << 16
"""Frames of this size are not copied when they are received."""
CURVE_BYTES = 33
"""What encryption adds to a frame."""
MIN_SILENCE_S = 0.5
MAX_SILENCE_S = 3600.0
_ADDRESS = re.compile(r"tcp://(\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9._*-]+):(\d{1,5}|\*)")


def check(address: str, ports: range, silence_s: float) -> None:
    """Check what a connection is made with.

    Args:
        address: such as ``tcp://192.0.2.7:5555``.
        ports: that it may have.
        silence_s: seconds after which a connection on which nothing comes is taken to be cut.

    Raises:
        ConfigurationError: the address is not one of TCP, or the silence too short or too long.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or (0 if match[2] == "*" else int(match[2])) not in ports:
        raise ConfigurationError(
            f"{address!r} is not an address such as tcp://192.0.2.7:5555 or tcp://[2001:db8::7]:5555"
        )
    if not MIN_SILENCE_S <= silence_s <= MAX_SILENCE_S:
        raise ConfigurationError(f"silence_s must be between {MIN_SILENCE_S} and {MAX_SILENCE_S} seconds: {silence_s}")


def configure(socket: zmq.Socket[bytes], address: str, silence_s: float, handshake_s: float) -> None:
    """Set what both ends have in common.

    Args:
        socket: not yet bound or connected.
        address: where it will be.
        silence_s: as :func:`check` says.
        handshake_s: how long either side may take to identify itself, in seconds.
    """
    silence_ms = round(silence_s * 1000)
    socket.linger = 0
    socket.ipv6 = "[" in address
    socket.handshake_ivl = round(handshake_s * 1000)
    # A heartbeat is missed at the latest one interval after the cut, and then so long.
    socket.heartbeat_ivl, socket.heartbeat_timeout = silence_ms // 5, silence_ms * 4 // 5
    socket.heartbeat_ttl = silence_ms


def close_monitored(socket: zmq.Socket[bytes], linger_s: float) -> None:
    """Close a socket whose events somebody follows; what was sent is sent on for so many seconds at most."""
    # ZeroMQ would wait for ever to report an event to a monitor that is closed before the socket is gone.
    socket.disable_monitor()
    socket.close(round(linger_s * 1000))


def rest(socket: zmq.Socket[bytes], frame: zmq.Frame) -> list[Buffer]:
    """The frames of a message behind its first one."""
    frames = []
    while frame.more:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        frames.append(buffer(frame))
    return frames


def buffer(frame: zmq.Frame) -> Buffer:
    """What is in a frame: a copy, or where it is big, where it lies."""
    return frame.buffer if len(frame) >= BIG_BYTES else frame.bytes
