"""What hosts have sent, as much of it at a time as fits into memory."""

from __future__ import annotations

from collections.abc import Iterator

from parenv.protocol.data import Buffer
from parenv.transport.curve import HostListener

MAX_MESSAGES_AT_ONCE = 64


def heard(listener: HostListener) -> Iterator[tuple[bytes, str, list[Buffer]]]:
    """Messages that have come, and of which connection and host each is; more of them the next time."""
    for _ in range(MAX_MESSAGES_AT_ONCE):
        if (message := listener.receive()) is None:
            return
        yield message
