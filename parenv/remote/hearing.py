"""What hosts have sent, as much of it at a time as fits into memory."""

from __future__ import annotations

from collections.abc import Iterator

from parenv.errors import ProtocolError
from parenv.protocol.data import Buffer
from parenv.remote.host_messages import max_head_bytes
from parenv.remote.net.curve import HostListener

MAX_MESSAGES_AT_ONCE = 64


def heard(listener: HostListener, max_message_bytes: int) -> Iterator[tuple[bytes, str, list[Buffer]]]:
    """Messages that have come, and of which connection and host each is; more of them the next time."""
    heads = 0
    for _ in range(MAX_MESSAGES_AT_ONCE):
        if heads > max_head_bytes(max_message_bytes) or (message := listener.receive()) is None:
            return
        heads += len(message[2][0])
        yield message


def check_head(frames: list[Buffer], max_message_bytes: int) -> None:
    """Check a message before it is read.

    Raises:
        ProtocolError: its head is too large.
    """
    if len(frames[0]) > (most := max_head_bytes(max_message_bytes)):
        raise ProtocolError(f"the head of a message has {len(frames[0]):,} bytes, more than {most:,}")
