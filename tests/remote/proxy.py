"""TCP proxy between a host and its driver that records the traffic and can alter, hold back or cut it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

GREETING_BYTES = 64
Mangle = Callable[[int, bytes], bytes]
"""Function of a frame's number and bytes that returns the bytes to forward. Each of the 64 bytes of the greeting is a
frame of its own, with a number from -64 to -1."""


def unchanged(_: int, frame: bytes) -> bytes:
    return frame


class Proxy:
    """TCP proxy that splits the traffic into ZMTP frames.

    Args:
        address: Address of the driver.
        to_driver: Function that alters the frames of hosts.
        to_host: Function that alters the frames of the driver.
    """

    def __init__(self, address: str, *, to_driver: Mangle = unchanged, to_host: Mangle = unchanged) -> None:
        self._target = ("127.0.0.1", int(address.rpartition(":")[2]))
        self._mangles = (to_driver, to_host)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._end, self._ended = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._pipes: dict[socket.socket, tuple[socket.socket, _Direction]] = {}
        self.recorded: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        """Bytes received from hosts, and bytes received from the driver."""
        self.silent = threading.Event()
        """If set, all data is discarded, and the end of a connection is not passed on."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        for readable in (self._listener, self._ended):
            self._selector.register(readable, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._end.close()
        self._thread.join()
        self._selector.close()
        for closed in (self._listener, self._ended, *self._pipes):
            closed.close()

    def drop(self) -> None:
        """Close all connections."""
        self._end.send(b"x")

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                readable = key.fileobj
                if readable is self._ended:
                    if not self._ended.recv(1):
                        return
                    for source in list(self._pipes):
                        self._close(source)
                if readable is self._listener:
                    self._accept()
                elif isinstance(readable, socket.socket) and readable in self._pipes:
                    self._forward(readable)

    def _accept(self) -> None:
        host, driver = self._listener.accept()[0], socket.create_connection(self._target)
        for number, (source, sink) in enumerate(((host, driver), (driver, host))):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pipes[source] = (sink, _Direction(self._mangles[number], self.recorded[number]))
            self._selector.register(source, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        sink, direction = self._pipes[source]
        try:
            data = source.recv(1 << 16)
            if data and not self.silent.is_set():
                sink.sendall(direction.pass_on(data))
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(source)
            if not self.silent.is_set():
                self._close(source)
                self._close(sink)

    def _close(self, closed: socket.socket) -> None:
        if closed in self._pipes:
            del self._pipes[closed]
            if closed in self._selector.get_map():
                self._selector.unregister(closed)
            closed.close()


class _Direction:
    """One direction of a connection."""

    def __init__(self, mangle: Mangle, recorded: bytearray) -> None:
        self._mangle = mangle
        self._recorded = recorded
        self._pending = bytearray()
        self._number = -GREETING_BYTES

    def pass_on(self, data: bytes) -> bytes:
        self._recorded += data
        self._pending += data
        passed = bytearray()
        while (size := self._frame_size()) is not None and len(self._pending) >= size:
            passed += self._mangle(self._number, bytes(self._pending[:size]))
            del self._pending[:size]
            self._number += 1
        return bytes(passed)

    def _frame_size(self) -> int | None:
        """Return the size of the next frame with its flags and length field, or ``None`` if it is not known yet."""
        if self._number < 0:
            return 1
        with contextlib.suppress(IndexError):
            if self._pending[0] & 2:
                return 9 + int.from_bytes(self._pending[1:9], "big") if len(self._pending) >= 9 else None
            return 2 + self._pending[1]
        return None
