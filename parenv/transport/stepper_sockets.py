"""Unix sockets between the main process and steppers, which have no ZeroMQ and may be in a container.

Each new process of a worker gets a folder that only this user can read, with a listening socket and the files that it
needs. The folder is removed as soon as the process has connected. A message is the number of its frames, their lengths,
and their bytes.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Container, Sequence
from pathlib import Path

from parenv.errors import ProtocolError
from parenv.transport.waiting import Polled

Buffer = bytes | bytearray | memoryview
Frames = Sequence[Buffer]
SOCKET = "socket"
MAX_PATH_BYTES = 100
"""A Unix socket address has room for 107 bytes."""
MAX_FRAMES = 1 << 16
_COUNT, _LENGTH = struct.Struct("<I"), struct.Struct("<Q")


class _Peer:
    """A process of a worker, before and after it has connected.

    Args:
        generation: Number of restarts of the worker.
        folder: Folder with the listening socket.
        descriptors: Descriptors that the process gets. They must stay open until then.
    """

    def __init__(self, generation: int, folder: Path, descriptors: tuple[int, ...]) -> None:
        self.generation, self.folder, self.descriptors = generation, folder, descriptors
        self.socket = socket.socket(socket.AF_UNIX)
        self.is_connected = False
        self.unsent: deque[memoryview] = deque()
        self.received = bytearray()
        self.socket.bind(str(folder / SOCKET))
        self.socket.listen(1)
        self.socket.setblocking(False)

    def accept(self) -> None:
        """Take the connection of the process, and give it its descriptors."""
        with self.socket as listening:
            self.socket, _ = listening.accept()
        self.socket.setblocking(False)
        self.is_connected = True
        # The buffer of a new connection has room for one byte.
        socket.send_fds(self.socket, [b"\0"], self.descriptors)
        shutil.rmtree(self.folder, ignore_errors=True)

    def flush(self) -> None:
        """Send as much as the connection takes now."""
        while self.is_connected and self.unsent:
            try:
                sent = self.socket.send(self.unsent[0])
            except BlockingIOError:
                return
            except OSError:
                # The process has ended, which its placement reports.
                self.unsent.clear()
                return
            if sent < len(self.unsent[0]):
                self.unsent[0] = self.unsent[0][sent:]
            else:
                self.unsent.popleft()

    def read(self) -> bool:
        """Read what has arrived; return whether the connection is still open."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.received += data
        return bool(data)

    def take(self, max_bytes: int) -> list[bytes | bytearray | memoryview] | None:
        """Return the frames of the next message, or ``None`` if it is not complete.

        Raises:
            ProtocolError: The message is larger than the limit.
        """
        received, position = self.received, _COUNT.size
        if len(received) < position:
            return None
        (count,) = _COUNT.unpack_from(received)
        if not 0 < count <= MAX_FRAMES:
            raise ProtocolError(f"a message must have 1 to {MAX_FRAMES:,} frames, got {count:,}")
        if len(received) < position + count * _LENGTH.size:
            return None
        lengths = [_LENGTH.unpack_from(received, position + i * _LENGTH.size)[0] for i in range(count)]
        position += count * _LENGTH.size
        if sum(lengths) > max_bytes:
            raise ProtocolError(f"a message must have at most {max_bytes:,} bytes, got {sum(lengths):,}")
        if len(received) < position + sum(lengths):
            return None
        frames: list[Buffer] = []
        for length in lengths:
            frames.append(bytes(received[position : position + length]))
            position += length
        del received[:position]
        return frames

    def close(self) -> None:
        """Close the socket, and remove the folder."""
        self.socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class StepperSockets:
    """The main process's ends of all connections to steppers.

    Args:
        max_message_bytes: Maximum size of a message from a stepper.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max_bytes = max_message_bytes
        # An epoll forgets sockets that are closed, so the pollers that hold its descriptor stay right.
        self._epoll = select.epoll()
        self._peers: dict[int, _Peer] = {}
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._woken, select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that is readable if a process connects or sends."""
        return self._epoll.fileno()

    def open(self, worker: int, generation: int, descriptors: tuple[int, ...]) -> Path:
        """Listen for a new process of a worker; return its folder.

        Args:
            worker: Index of the worker.
            generation: Number of restarts of the worker.
            descriptors: Descriptors that the process gets when it connects.

        Raises:
            OSError: No descriptor or folder can be made.
        """
        self.drop(worker)
        peer = self._peers[worker] = _Peer(generation, _folder(), descriptors)
        self._epoll.register(peer.socket, select.EPOLLIN)
        return peer.folder

    def drop(self, worker: int) -> None:
        """Close the connection to a process that is gone, if there is one."""
        if (peer := self._peers.pop(worker, None)) is not None:
            peer.close()

    def is_connected(self, worker: int, generation: int) -> bool:
        """Return whether a process has connected."""
        peer = self._peers.get(worker)
        return peer is not None and peer.generation == generation and peer.is_connected

    def send(self, worker: int, generation: int, frames: Frames) -> None:
        """Send to a process without waiting. A message to an earlier process is dropped."""
        peer = self._peers.get(worker)
        if peer is None or peer.generation != generation:
            return
        head = _COUNT.pack(len(frames)) + b"".join(_LENGTH.pack(memoryview(frame).nbytes) for frame in frames)
        peer.unsent += [memoryview(part).cast("B") for part in (head, *frames) if len(part)]
        self._flush(peer)

    def wake(self) -> None:
        """Make :meth:`fileno` readable until :meth:`work` is called."""
        os.eventfd_write(self._woken, 1)

    def receive(self, worker: int, generation: int) -> list[bytes | bytearray | memoryview] | None:
        """Return the next message of a process, or ``None``.

        Raises:
            ProtocolError: The message is malformed.
        """
        peer = self._peers.get(worker)
        return None if peer is None or peer.generation != generation else peer.take(self._max_bytes)

    def work(self) -> None:
        """Accept connections, send what had to wait, and read what has arrived."""
        by_descriptor = {peer.socket.fileno(): peer for peer in self._peers.values()}
        for descriptor, events in self._epoll.poll(0):
            if descriptor == self._woken:
                os.eventfd_read(self._woken)
                continue
            peer = by_descriptor[descriptor]
            if not peer.is_connected:
                # The process may have ended since it connected. Its placement reports that.
                with contextlib.suppress(OSError):
                    peer.accept()
                    self._epoll.register(peer.socket, select.EPOLLIN)
            elif events & ~select.EPOLLOUT and not peer.read():
                self._epoll.unregister(peer.socket)
                continue
            self._flush(peer)

    def polled(self) -> Sequence[tuple[Polled, int]]:
        """Poll the epoll, see :class:`~parenv.transport.waiting.Source`."""
        return ((self.fileno(), select.POLLIN),)

    def notice(self, ready: Container[object]) -> None:
        """Do what is due, see :class:`~parenv.transport.waiting.Source`."""
        if self.fileno() in ready:
            self.work()

    def close(self) -> None:
        """Close all connections. Idempotent."""
        for worker in list(self._peers):
            self.drop(worker)
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._woken)

    def _flush(self, peer: _Peer) -> None:
        peer.flush()
        if peer.is_connected:
            with contextlib.suppress(OSError):
                self._epoll.modify(peer.socket, select.EPOLLIN | (select.EPOLLOUT if peer.unsent else 0))


def _folder() -> Path:
    """Make a folder whose path is short enough for a socket."""
    folder = tempfile.mkdtemp(prefix="parenv-")
    if len(os.fsencode(folder)) + len(SOCKET) + 1 > MAX_PATH_BYTES:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="parenv-", dir="/tmp")
    return Path(folder)
