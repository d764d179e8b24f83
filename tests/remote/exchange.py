"""Exchange of messages between a host and a driver that checks that none is lost, altered or out of order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from parenv.protocol.data import Buffer
from parenv.remote.net.curve import HostListener, HostSocket
from parenv.transport.waiting import Waiting

LIMIT_S = 120.0
BIG = bytes(range(256)) * 300
Received = TypeVar("Received")


def as_bytes(frames: Sequence[Buffer]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


def numbered(number: int) -> list[Buffer]:
    """Return a message that differs from all others. Some are small, others too large to be copied when received."""
    if number % 7 == 3:
        return [b"big %d" % number, memoryview(BIG)[number % 256 :], b""]
    return [b"small %d" % number]


class Exchange:
    """Numbered messages from a host to its driver, which sends each of them back.

    Args:
        listener: Listener of the driver.
        host: Socket of the host, connected or connecting.
        name: Name of the host on the driver's allow list.

    Attributes:
        others: Names and frames of the messages of other hosts, which are sent back too.
        peer: Connection of the host.
    """

    def __init__(self, listener: HostListener, host: HostSocket, name: str) -> None:
        self._listener = listener
        self._host = host
        self._name = name
        self._number = 0
        self.others: list[tuple[str, list[bytes]]] = []
        self.peer = b""

    def __enter__(self) -> Self:
        self._waiting = Waiting()
        self._waiting.watch(self._listener)
        self._waiting.watch(self._host)
        self.turn()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._waiting.unwatch(self._host)

    def turn(self) -> None:
        """Send three messages there and back, and check that they arrive unaltered and in order."""
        sent = [numbered(self._number + offset) for offset in range(3)]
        for message in sent:
            assert self._host.send(message)
        for message in sent:
            frames = self._wait(self._from_host)
            assert as_bytes(frames) == as_bytes(message)
            assert self._listener.send(self.peer, frames)
        for message in sent:
            assert as_bytes(self._wait(self._host.receive)) == as_bytes(message)
        self._number += len(sent)

    def until(self, happened: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Exchange messages until a condition holds."""
        deadline = time.monotonic() + limit_s
        while not happened():
            assert time.monotonic() < deadline, f"the condition did not hold in time: {self._listener.refusals}"
            self.turn()

    def _from_host(self) -> list[Buffer] | None:
        while (received := self._listener.receive()) is not None:
            peer, name, frames = received
            if name == self._name:
                self.peer = peer
                return frames
            self.others.append((name, as_bytes(frames)))
            self._listener.send(peer, frames)
        return None

    def _wait(self, receive: Callable[[], Received | None]) -> Received:
        deadline = time.monotonic() + LIMIT_S
        while (received := receive()) is None:
            assert time.monotonic() < deadline, (
                f"no message arrived in time: {self._host.look()}, {self._listener.refusals}"
            )
            self._waiting.wait(1.0)
        return received
