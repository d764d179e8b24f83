"""The messages of a connection in one direction and the other: none missing, none twice, each whole.

CURVE lets nobody read, alter or repeat a frame, but ZeroMQ accepts it when somebody on the way leaves frames out. Every
message therefore ends in a frame with its number and how many frames are before it. Since frames come in order, only
those of that message can be between it and the one before.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

from parenv.errors import ProtocolError
from parenv.protocol.data import Buffer

_LAST = struct.Struct("!QIH")


class Stream:
    """Counts the messages of one connection.

    >>> here, there = Stream(), Stream()
    >>> frames = [b"some", b"thing", here.last_frame(2)]
    >>> here.sent_one()
    >>> there.open(frames), frames
    (0, [b'some', b'thing'])

    Attributes:
        received: how many messages have come.
    """

    def __init__(self) -> None:
        self.received = 0
        self._sent = 0

    def last_frame(self, num_frames: int, credit: int = 0) -> bytes:
        """The frame with which the next message ends.

        Args:
            num_frames: how many are before it.
            credit: how many messages more the other side may send.
        """
        return _LAST.pack(self._sent, num_frames, credit)

    def sent_one(self) -> None:
        """Note that the message was sent."""
        self._sent += 1

    def open(self, frames: list[Buffer]) -> int:
        """Check a message that has come, and take its last frame away.

        Returns:
            How many messages more this side may send.

        Raises:
            ProtocolError: something is missing in it or before it.
        """
        if not frames or len(frames[-1]) != _LAST.size:
            raise ProtocolError("a message over the network does not end as it must")
        number, num_frames, credit = _LAST.unpack(frames.pop())
        if (number, num_frames) != (self.received, len(frames)):
            raise ProtocolError("frames that were sent over the network are missing")
        self.received += 1
        return int(credit)


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
