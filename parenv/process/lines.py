"""Non-blocking sockets between the main process and a fork server, so neither waits for the other."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections import deque
from typing import Any

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.platform import system

MAX_DESCRIPTORS = 16
_ROOM_FOR_DESCRIPTORS = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)


class Lines:
    """Lines of JSON and descriptors over a non-blocking stream socket.

    Args:
        sock: The socket.

    Attributes:
        socket: The same socket, made non-blocking.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._received = b""
        self._descriptors: list[int] = []
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()

    @property
    def is_pending(self) -> bool:
        """Return whether :meth:`flush` has lines to send."""
        return bool(self._unsent)

    def send(self, line: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send one line, now or in a later :meth:`flush`. Its descriptors must stay open until then."""
        self._unsent.append((json.dumps(line).encode() + b"\n", descriptors))
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket takes now. Descriptors travel with the first byte of their line."""
        while self._unsent:
            data, descriptors = self._unsent[0]
            try:
                sent = socket.send_fds(self.socket, [data], descriptors) if descriptors else self.socket.send(data)
            except OSError as error:
                # ETOOMANYREFS: too many descriptors are in transit. Some must be received first.
                if error.errno in (errno.EAGAIN, errno.ETOOMANYREFS):
                    return
                raise
            if sent < len(data):
                self._unsent[0] = data[sent:], ()
            else:
                self._unsent.popleft()

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the lines that have arrived, or ``None`` at the end of file."""
        try:
            data, carried, _, _ = self.socket.recvmsg(1 << 16, _ROOM_FOR_DESCRIPTORS, system.RECEIVE_FLAGS)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        for _, _, numbers in carried:
            self._descriptors += system.owned(memoryview(numbers).cast("i"))
        if not data:
            return None
        *complete, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in complete]

    def peek(self) -> list[dict[str, Any]]:
        """Return the lines that :meth:`receive` will return next, without descriptors."""
        try:
            data = self._received + self.socket.recv(1 << 16, socket.MSG_PEEK)
        except OSError:
            return []
        return [json.loads(line) for line in data.split(b"\n")[:-1]]

    def take_descriptors(self, count: int) -> list[int]:
        """Return the next received descriptors. The caller owns them and must close them."""
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return taken

    def close(self) -> None:
        """Close the socket and the received descriptors that were not taken. Idempotent."""
        self.socket.close()
        for descriptor in self.take_descriptors(len(self._descriptors)):
            os.close(descriptor)
