"""The messages of a connection in one direction and the other: none missing, none twice, each whole.

CURVE lets nobody read, alter or repeat a frame of ZeroMQ, but it accepts that somebody on the way leaves some out.
Every message is therefore one frame, with its number in it. (For a message of several frames, ZeroMQ may also abort the
process, if the connection breaks while its socket is being closed.)

In the frame are the number, a credit, how many parts there are, the size of each, and the parts, at multiples of
:data:`ALIGNMENT` bytes.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from parenv.errors import ProtocolError
from parenv.protocol.data import Buffer
from parenv.remote.net.window import Receipts

ALIGNMENT = 8
BIG_BYTES = 1 << 16
"""Parts of this size are not copied when they are received."""
_HEAD = struct.Struct("<QII")


class Stream:
    """Numbers the messages of one connection.

    >>> here, there = Stream(), Stream()
    >>> frame = here.seal([b"some", b"thing"])
    >>> here.sent_one()
    >>> there.open(frame)
    (0, [b'some', b'thing'])

    Attributes:
        received: how many messages have come.
        receipts: of what has come, on the driver's side.
        fd: descriptor of the connection, on the driver's side.
    """

    def __init__(self) -> None:
        self.received = 0
        self.receipts = Receipts()
        self.fd = -1
        self._sent = 0

    def seal(self, parts: Sequence[Buffer], credit: int = 0) -> bytes:
        """The next message as one frame.

        Args:
            parts: that it consists of.
            credit: how many messages more the other side may send.
        """
        sizes = [len(part) if isinstance(part, bytes) else memoryview(part).nbytes for part in parts]
        pieces: list[Buffer] = [_HEAD.pack(self._sent, credit, len(parts)), struct.pack(f"<{len(sizes)}Q", *sizes)]
        for part, size in zip(parts, sizes, strict=True):
            pieces += (part, bytes(-size % ALIGNMENT))
        return b"".join(pieces)

    def sent_one(self) -> None:
        """Note that the message was sent."""
        self._sent += 1

    def open(self, frame: Buffer) -> tuple[int, list[Buffer]]:
        """Take a message apart that has come.

        Returns:
            How many messages more this side may send, and its parts: big ones where they lie in the frame.

        Raises:
            ProtocolError: it is malformed, or messages before it are missing.
        """
        whole = memoryview(frame)
        if len(whole) < _HEAD.size:
            raise ProtocolError("a message over the network is shorter than its head")
        number, credit, num_parts = _HEAD.unpack_from(whole)
        if number != self.received:
            raise ProtocolError("messages that were sent over the network are missing")
        parts = list(_parts(whole, num_parts))
        self.received += 1
        return credit, parts


def _parts(whole: memoryview, num_parts: int) -> Iterator[Buffer]:
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
    """Those of all peers of a socket.

    Args:
        num_live: how many connections there can be at a time.
        reachable: whether a peer can still be sent to.
    """

    def __init__(self, num_live: int, reachable: Callable[[bytes], bool]) -> None:
        self._num_live = num_live
        self._reachable = reachable
        self._of: dict[bytes, Stream] = {}
        self._banned: deque[bytes] = deque(maxlen=num_live)

    def of(self, peer: bytes) -> Stream | None:
        """The stream of a peer; ``None`` where nothing has come from it, or it is banned."""
        return self._of.get(peer)

    def begin(self, peer: bytes) -> Stream | None:
        """The stream of a peer from which something has come; ``None`` where it is banned."""
        if peer in self._banned:
            return None
        if peer not in self._of:
            # Nobody says which connections have ended.
            if len(self._of) >= 2 * self._num_live:
                self._of = {peer: stream for peer, stream in self._of.items() if self._reachable(peer)}
            self._of[peer] = Stream()
        return self._of[peer]

    def ban(self, peer: bytes) -> None:
        """Ignore what else has come from a peer."""
        self._of.pop(peer, None)
        self._banned.append(peer)
