"""TCP connections that ZeroMQ holds, looked at from outside.

It may close one at any time, and another file may then have its number. Each is therefore looked at through a
descriptor of our own, and only if it is a connection to our port.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

UNKNOWN = "an unknown address"
_LAST_DATA_RECEIVED = 52
"""Where it is in the kernel's ``struct tcp_info``, in bytes."""


def peer_of(fd: int, port: int) -> str:
    """The IP address at the other end, or :data:`UNKNOWN` where it is not known any more."""
    with contextlib.suppress(OSError), _own(fd, port) as connection:
        return str(connection.getpeername()[0])
    return UNKNOWN


def shut(fd: int, port: int) -> None:
    """End a connection in both directions; ZeroMQ sees it at once."""
    with contextlib.suppress(OSError), _own(fd, port) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def silent_s(fd: int, port: int) -> float:
    """For how many seconds nothing has come; 0 where that cannot be told, as on other systems than Linux."""
    with contextlib.suppress(OSError, AttributeError), _own(fd, port) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED + 4)
        return float(struct.unpack_from("=I", info, _LAST_DATA_RECEIVED)[0]) / 1000
    return 0.0


@contextlib.contextmanager
def _own(fd: int, port: int) -> Iterator[socket.socket]:
    """A descriptor of our own.

    Raises:
        OSError: it is closed, or no connection to this port.
    """
    copy = os.dup(fd)
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
            raise OSError("this is another file by now")
        yield connection
