"""TCP connections that ZeroMQ holds, looked at from outside.

It may close one at any time, and another file may then have its number. Each is therefore looked at through a
descriptor of our own, and only if it is a connection to the port in question.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

UNKNOWN = "an unknown address"
_LAST_DATA_RECEIVED, _BYTES_ACKNOWLEDGED, _BYTES_RECEIVED, _END = 52, 120, 128, 136
"""Where they are in the kernel's ``struct tcp_info``, in bytes."""


class TcpTraffic(NamedTuple):
    """What the kernel knows of a connection.

    Args:
        silent_s: for how many seconds nothing has come.
        received_bytes: how much has come, whether or not anybody has read it.
        acknowledged_bytes: how much was sent to it, as far as it says that it has it.
    """

    silent_s: float
    received_bytes: int
    acknowledged_bytes: int


def peer_of(fd: int, port: int) -> str:
    """The IP address at the other end, or :data:`UNKNOWN` where it is not known any more."""
    with contextlib.suppress(OSError), _own(fd, port) as connection:
        return str(connection.getpeername()[0])
    return UNKNOWN


def shut(fd: int, port: int) -> None:
    """End a connection in both directions; ZeroMQ sees it at once."""
    with contextlib.suppress(OSError), _own(fd, port) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def traffic(fd: int, port: int) -> TcpTraffic:
    """What has come; nothing and never where that cannot be told, as on other systems than Linux."""
    with contextlib.suppress(OSError, AttributeError, struct.error), _own(fd, port) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _END)
        (silent_ms,) = struct.unpack_from("=I", info, _LAST_DATA_RECEIVED)
        acknowledged_bytes, received_bytes = struct.unpack_from("=QQ", info, _BYTES_ACKNOWLEDGED)
        return TcpTraffic(silent_ms / 1000, received_bytes, acknowledged_bytes)
    return TcpTraffic(0.0, 0, 0)


@contextlib.contextmanager
def _own(fd: int, port: int) -> Iterator[socket.socket]:
    """A descriptor of our own.

    Raises:
        OSError: it is closed, or no connection to this port, here or there.
    """
    copy = os.dup(fd)
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            raise OSError("this is another file by now")
        if port not in (connection.getsockname()[1], connection.getpeername()[1]):
            raise OSError("this is another connection by now")
        yield connection
