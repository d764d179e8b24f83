"""Numbered messages of a connection: none is missing, none comes twice, each is complete.

CURVE encrypts and authenticates the frames of ZeroMQ, but an attacker in between may drop some. Every message is
therefore one frame with a number. (If a message has several frames and the connection breaks while its socket is being
closed, ZeroMQ may abort the process.)

The number of unread messages of a host is limited at both ends by a window.

A frame holds the number, a credit, the number of parts, their sizes, and the parts, at multiples of
:data:`ALIGNMENT` bytes.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from parenv.errors import ProtocolError
from parenv.protocol.data import Buffer

WINDOW = 16
"""Maximum number of unread messages."""
WINDOW_BYTES = 1 << 22
"""Maximum number of unread bytes, beside one more message."""


class Window:
    """A host's count of the messages that the main process has not read yet.

    Args:
        messages: Maximum number of messages.
        nbytes: Maximum number of bytes, beside one more message.
    """

    def __init__(self, messages: int = WINDOW, nbytes: int = WINDOW_BYTES) -> None:
        self._messages, self._nbytes = messages, nbytes
        self._sizes: deque[int] = deque()

    @property
    def is_open(self) -> bool:
        """True if another message may be sent."""
        return len(self._sizes) < self._messages and sum(self._sizes) < self._nbytes

    def sent(self, nbytes: int) -> None:
        """Count a message of this size as sent."""
        self._sizes.append(nbytes)

    def read(self, messages: int) -> None:
        """Count this number of messages as read."""
        for _ in range(min(messages, len(self._sizes))):
            self._sizes.popleft()


class Receipts:
    """The main process's count of read messages that it has not reported to the host: at most half a :class:`Window`.

    Args:
        messages: Number of messages in the window.
        nbytes: Number of bytes in the window.
    """

    def __init__(self, messages: int = WINDOW, nbytes: int = WINDOW_BYTES) -> None:
        self._messages, self._nbytes = messages, nbytes
        self._read = self._read_bytes = 0

    def due(self, nbytes: int) -> int:
        """Count a message as read. Returns the number of messages to report now, or 0."""
        self._read, self._read_bytes = self._read + 1, self._read_bytes + nbytes
        if 2 * self._read < self._messages and 2 * self._read_bytes < self._nbytes:
            return 0
        due, self._read, self._read_bytes = self._read, 0, 0
        return due


ALIGNMENT = 8
BIG_BYTES = 1 << 16
"""Minimum size of parts that are not copied when they are received."""
_HEAD = struct.Struct("<QII")


class Stream:
    """Numbers the messages of one connection, in both directions.

    >>> here, there = Stream(), Stream()
    >>> frame = here.seal([b"some", b"thing"])
    >>> here.sent_one()
    >>> there.open(frame)
    (0, [b'some', b'thing'])

    Attributes:
        received: Number of received messages.
        receipts: Receipts for the host, in the main process.
        fd: Descriptor of the connection, in the main process.
        host: Name of the host, in the main process.
    """

    def __init__(self) -> None:
        self.received = 0
        self.receipts = Receipts()
        self.fd, self.host = -1, ""
        self._sent = 0

    def seal(self, parts: Sequence[Buffer], credit: int = 0) -> bytes:
        """Return the next message as one frame. ``credit`` is the number of messages more that the peer may send."""
        sizes = [len(part) if isinstance(part, bytes) else memoryview(part).nbytes for part in parts]
        pieces: list[Buffer] = [_HEAD.pack(self._sent, credit, len(parts)), struct.pack(f"<{len(sizes)}Q", *sizes)]
        for part, size in zip(parts, sizes, strict=True):
            pieces += (part, bytes(-size % ALIGNMENT))
        return b"".join(pieces)

    def sent_one(self) -> None:
        """Count the message as sent."""
        self._sent += 1

    def open(self, frame: Buffer) -> tuple[int, list[Buffer]]:
        """Split a received message.

        Returns:
            The credit of this side, and the parts. Large parts are views of the frame.

        Raises:
            ProtocolError: The message is malformed, or an earlier message is missing.
        """
        whole = memoryview(frame)
        if len(whole) < _HEAD.size:
            raise ProtocolError("a message over the network is shorter than its head")
        number, credit, num_parts = _HEAD.unpack_from(whole)
        # CURVE does not notice a message that an attacker in between has dropped.
        if number != self.received:
            raise ProtocolError("messages over the network must be complete, but some are missing")
        # A malformed message is not counted, so the next one is refused as well.
        parts = list(_parts(whole, num_parts))
        self.received += 1
        return credit, parts


def _parts(whole: memoryview, num_parts: int) -> Iterator[Buffer]:
    # The peer chooses all of these numbers, so each is compared with the length of the frame.
    begin = _HEAD.size + 8 * num_parts
    if begin > len(whole):
        raise ProtocolError("a message over the network is shorter than its head")
    for (size,) in struct.iter_unpack("<Q", whole[_HEAD.size : begin]):
        end = begin + size
        if end > len(whole):
            raise ProtocolError("a message over the network is shorter than its parts")
        yield whole[begin:end] if size >= BIG_BYTES else bytes(whole[begin:end])
        begin = end + -size % ALIGNMENT
    if begin != len(whole):
        raise ProtocolError("a message over the network is longer than its parts")


class Streams:
    """The streams of all peers of a socket.

    Args:
        num_live: Maximum number of connections.
        reachable: Returns whether a peer is still connected.
    """

    def __init__(self, num_live: int, reachable: Callable[[bytes], bool]) -> None:
        self._num_live = num_live
        self._reachable = reachable
        self._of: dict[bytes, Stream] = {}
        self._banned: deque[bytes] = deque(maxlen=num_live)

    def of(self, peer: bytes) -> Stream | None:
        """Return the stream of a peer, or ``None`` if it has sent nothing or is banned."""
        return self._of.get(peer)

    def begin(self, peer: bytes) -> Stream | None:
        """Return the stream of a peer that has sent something, or ``None`` if it is banned."""
        if peer in self._banned:
            return None
        if peer not in self._of:
            # ZeroMQ does not report which peers have disconnected.
            if len(self._of) >= 2 * self._num_live:
                self._of = {peer: stream for peer, stream in self._of.items() if self._reachable(peer)}
            self._of[peer] = Stream()
        return self._of[peer]

    def ban(self, peer: bytes) -> None:
        """Ignore further messages of a peer."""
        # Messages of the peer may still wait in the queue of the socket, and would begin a new stream.
        self._of.pop(peer, None)
        self._banned.append(peer)
