"""Messages between the driver and the workers of one machine, over one socket pair per worker process.

The driver makes both ends of a pair before it starts the worker. No socket listens or has a name, and every worker is
connected from the beginning. If no descriptor is left, :meth:`DriverSocket.open` raises an ``OSError``.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence

Frames = Sequence[bytes | bytearray | memoryview]
_RECEIVED_AT_ONCE = 1 << 18
_LENGTH = struct.Struct("<Q")


class _Stream:
    """Messages of frames over one end of a pair: each is the number of its frames, their lengths, and their bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.unsent = b""
        self._sent: list[int] = []
        self._received = bytearray()

    def put(self, frames: Frames) -> None:
        """Have a message sent with the next :meth:`flush`."""
        lengths = [memoryview(frame).nbytes for frame in frames]
        # In one assignment, since a signal handler that raises may cut this short between any two.
        self.unsent = b"".join((self.unsent, struct.pack(f"<{1 + len(lengths)}Q", len(lengths), *lengths), *frames))

    def flush(self) -> None:
        """Send what the socket takes now; all of it, if the socket is one that blocks."""
        while (begin := sum(self._sent)) < len(self.unsent):
            rest = memoryview(self.unsent)[begin:]
            try:
                # By ``map``, because Python runs signal handlers between a call and the use of its result, and what was
                # sent would be sent once more after a handler that raises.
                self._sent.extend(map(self.socket.send, (rest,), (socket.MSG_NOSIGNAL,)))
            except BlockingIOError:
                return
        self.unsent, self._sent = b"", []

    def fill(self, block: bool) -> bool:
        """Read the bytes that have come; return whether there were any.

        Raises:
            EOFError: The other end is closed.
        """
        try:
            data = self.socket.recv(_RECEIVED_AT_ONCE, 0 if block else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not data:
            raise EOFError
        self._received += data
        return True

    def take(self) -> list[bytes] | None:
        """The next message, if all of it has come."""
        with memoryview(self._received) as received:
            if len(received) < _LENGTH.size:
                return None
            begin = _LENGTH.size * (1 + _LENGTH.unpack_from(received)[0])
            if len(received) < begin:
                return None
            lengths = memoryview(received[_LENGTH.size : begin]).cast("Q").tolist()
            if len(received) < begin + sum(lengths):
                return None
            frames, end = [], begin
            for length in lengths:
                frames.append(bytes(received[end : end + length]))
                end += length
        del self._received[:end]
        return frames


class _Pair:
    """Both ends for one process of a worker. The driver keeps both, as descriptors for those of the next process."""

    def __init__(self, generation: int) -> None:
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.generation, self.stream = generation, _Stream(ours)

    def close(self) -> None:
        self.stream.socket.close()
        self.theirs.close()


class DriverSocket:
    """The driver's ends, one for each worker. It never waits: see :meth:`fileno`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._pairs: dict[int, _Pair] = {}
        self._worker_of: dict[int, int] = {}
        self._messages: deque[list[bytes]] = deque()

    def fileno(self) -> int:
        """Readable while a message can be received, or more of an unsent message can be sent."""
        return self._epoll.fileno()

    def open(self, worker: int, generation: int) -> int:
        """Make the pair for a process of a worker, in the place of its last one's; the descriptor of its end.

        Raises:
            OSError: there is no descriptor left.
        """
        self.drop(worker)
        pair = self._pairs[worker] = _Pair(generation)
        ours = pair.stream.socket.fileno()
        self._worker_of[ours] = worker
        self._epoll.register(ours, select.EPOLLIN)
        return pair.theirs.fileno()

    def drop(self, worker: int) -> None:
        """Close the pair of a worker that is gone, if there is one. This frees two descriptors."""
        if (pair := self._pairs.pop(worker, None)) is not None:
            # A child that the user has forked may have a copy of the socket, which would keep it registered.
            self._epoll.unregister(pair.stream.socket)
            del self._worker_of[pair.stream.socket.fileno()]
            pair.close()

    def send(self, worker: int, generation: int, frames: Frames) -> None:
        """Send to a process of a worker, or later if its socket is full. A message to an earlier process is dropped."""
        pair = self._pairs.get(worker)
        if pair is not None and pair.generation == generation:
            was_full = bool(pair.stream.unsent)
            pair.stream.put(frames)
            self._flush(pair, was_full)

    def receive(self) -> list[bytes] | None:
        """The next message that has come whole, or ``None``."""
        if not self._messages:
            for descriptor, events in self._epoll.poll(0.0):
                pair = self._pairs[self._worker_of[descriptor]]
                if events & select.EPOLLOUT:
                    self._flush(pair, was_full=True)
                while pair.stream.fill(block=False):
                    pass
                while (message := pair.stream.take()) is not None:
                    self._messages.append(message)
        return self._messages.popleft() if self._messages else None

    def close(self) -> None:
        """Close; what was not sent yet is dropped. Idempotent."""
        self._epoll.close()
        for pair in self._pairs.values():
            pair.close()

    def _flush(self, pair: _Pair, was_full: bool) -> None:
        pair.stream.flush()
        if (is_full := bool(pair.stream.unsent)) != was_full:
            self._epoll.modify(pair.stream.socket, select.EPOLLIN | (select.EPOLLOUT if is_full else 0))


class WorkerSocket:
    """A worker's end. It belongs to a process that ends with the driver.

    Args:
        descriptor: of the end that the driver has made for it.
    """

    def __init__(self, descriptor: int) -> None:
        self._stream = _Stream(socket.socket(fileno=descriptor))

    def send(self, frames: Frames) -> None:
        """Send to the driver; waits while it has too much to read."""
        self._stream.put(frames)
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._end()

    def receive(self, block: bool) -> list[bytes] | None:
        """Return the next message; ``None`` if ``block`` is false and no message has come whole."""
        try:
            while (message := self._stream.take()) is None and self._stream.fill(block):
                pass
        except (EOFError, ConnectionError):
            self._end()
        return message

    def wait(self, descriptor: int) -> None:
        """Wait until a message may have come or a descriptor is readable; :meth:`receive` must have had none before."""
        poll = select.poll()
        poll.register(self._stream.socket, select.POLLIN)
        poll.register(descriptor, select.POLLIN)
        poll.poll()

    def close(self) -> None:
        """Close. Messages that were sent before still arrive."""
        self._stream.socket.close()

    def _end(self) -> None:
        """End this process, as the fork server is about to do: the driver is gone, and no message can be sent."""
        os._exit(1)
