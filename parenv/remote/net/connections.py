"""TCP connections that ZeroMQ holds, and counts of those that were refused.

ZeroMQ may close a connection at any time, and another file may then get its descriptor. Each function therefore
duplicates the descriptor first, and checks that it is a connection to the expected port.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterator

from parenv.errors import embedded

UNKNOWN = "an unknown address"
MAX_LOGGED = 1000
_log = logging.getLogger("parenv")


def peer_of(fd: int, port: int) -> str:
    """Return the IP address of the peer, or :data:`UNKNOWN` after the connection has ended."""
    with contextlib.suppress(OSError), _own(fd, port) as connection:
        return str(connection.getpeername()[0])
    return UNKNOWN


def shut(fd: int, port: int) -> None:
    """Shut down a connection in both directions; ZeroMQ notices at once."""
    with contextlib.suppress(OSError), _own(fd, port) as connection:
        connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _own(fd: int, port: int) -> Iterator[socket.socket]:
    """Duplicate the descriptor of a connection.

    Raises:
        OSError: The descriptor is closed, or is not a connection to this port.
    """
    # ZeroMQ may close the descriptor at any time. Its duplicate refers to the same connection until it is closed here.
    copy = os.dup(fd)
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
            raise OSError("the descriptor has been closed and belongs to another file")
        yield connection


class Refusals:
    """Counts refusals by reason, and logs the first of each reason and peer.

    Attributes:
        counts: Number of refusals by reason.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()

    def note(self, reason: str, peer: str, text: str) -> None:
        """Log a refusal if it is the first for this reason and peer, then count it."""
        # A peer can cause any number of refusals, which must not fill the log.
        if (reason, peer) not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add((reason, peer))
            _log.warning("%s. Further ones like it are only counted.", embedded(text))
        self.counts[reason] += 1
