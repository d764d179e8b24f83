"""ZeroMQ on one machine: a ROUTER socket in the main process, and a DEALER socket in each worker process.

The main process makes a listening socket for each worker process, passes it on, and connects to it. It accepts no
connection itself: if no descriptor is left, ZeroMQ aborts a process that accepts, but tries again to connect.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import sys
import threading
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import zmq

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.platform import system
from parenv.platform.base import Handle
from parenv.transport.waiting import Polled

Frames = Sequence[bytes | bytearray | memoryview]
DESCRIPTORS = 8
"""Upper bound of the descriptors that ZeroMQ opens for a context and a socket. Without them it aborts the process."""
LINGER_MS = 1000
TERM_S = 10.0
# Plain numbers, because combining members of pyzmq's enumerations takes longer than sending a frame.
_POLLIN, _NOBLOCK, _MORE_NOBLOCK = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_log = logging.getLogger("parenv")


class _Peer(NamedTuple):
    """A worker process. Its listening socket stays open here, so that no other process can take the address."""

    generation: int
    routing_id: bytes
    listening: socket.socket
    address: str


class DriverSocket:
    """The main process's end. Its descriptors must be free: see :data:`DESCRIPTORS`."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        # The conversation allows few messages that a worker has not read. Without a limit, none is refused.
        self._socket.sndhwm = 0
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._peers: dict[int, _Peer] = {}
        self._opened = 0
        self._is_sending = self._is_receiving = False

    def open(self, worker: int, generation: int, folder: str) -> Handle:
        """Connect to a new process of a worker, which may start later; return the handle of its listening socket.

        Messages that are sent before the process has started wait for it.

        Args:
            worker: Index of the worker.
            generation: Generation of the process.
            folder: Folder for the address, see :attr:`~parenv.process.launcher.Launcher.folder`.

        Raises:
            OSError: No descriptor is left.
        """
        self.drop(worker)
        listening, address = system.listen(folder)
        # ZeroMQ aborts the process if two connections have one routing id.
        self._opened += 1
        peer = _Peer(generation, b"w%d" % self._opened, listening, address)
        self._peers[worker] = peer
        # With a routing id, the connection takes messages at once, and keeps them in order.
        self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, peer.routing_id)
        self._socket.connect(peer.address)
        return Handle(listening.fileno())

    def drop(self, worker: int) -> None:
        """Disconnect from a process that is gone, if there is one. This frees two descriptors."""
        if (peer := self._peers.pop(worker, None)) is not None:
            # The socket disconnects first. Until then ZeroMQ reconnects, also to another process that takes the name.
            self._socket.disconnect(peer.address)
            peer.listening.close()
            system.forget(peer.address)

    def send(self, worker: int, generation: int, frames: Frames) -> None:
        """Send to a worker process without waiting. A message to an earlier process or a dead one is dropped.

        Raises:
            zmq.ZMQError: ZeroMQ failed in any other way.
        """
        peer = self._peers.get(worker)
        if peer is None or peer.generation != generation:
            return
        send = self._socket.send
        if self._is_sending:
            # Ends the message that a signal handler cut short. If that message was whole, ZeroMQ ignores the frame.
            send(b"")
        self._is_sending = True
        try:
            send(peer.routing_id, _MORE_NOBLOCK)
            # The first frame of a message is never empty. It comes last, so a message that was cut short, which ends
            # in an empty frame, is not taken for a whole one.
            for frame in frames[1:]:
                send(frame, _MORE_NOBLOCK)
            send(frames[0], _NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
        self._is_sending = False

    def receive(self) -> list[bytes] | None:
        """Return the next message, or ``None``."""
        # The rest of a message that a signal handler cut short is not another message.
        while self._is_receiving and self._socket.getsockopt(zmq.RCVMORE):
            self._socket.recv()
        self._is_receiving, frames = True, None
        receive = self._socket.recv
        try:
            receive(_NOBLOCK)  # The routing id of the worker.
            # A frame that is not copied knows whether another one follows. Asking the socket takes longer.
            frame = receive(_NOBLOCK, False)
            frames = [frame.bytes]
            while frame.more:
                frame = receive(_NOBLOCK, False)
                frames.append(frame.bytes)
        except zmq.Again:
            # The messages of many workers arrive at once. Asking before each whether there is one takes as long.
            pass
        self._is_receiving = False
        return frames

    def polled(self) -> Sequence[tuple[Polled, int]]:
        """Poll the ROUTER socket, see :class:`~parenv.transport.waiting.Source`."""
        return ((self._socket, _POLLIN),)

    def notice(self, ready: Container[object]) -> None:
        """Nothing to do, see :class:`~parenv.transport.waiting.Source`."""

    def close(self) -> None:
        """Close; messages that were not sent yet are dropped. Idempotent."""
        self._socket.close()
        for peer in self._peers.values():
            peer.listening.close()
            system.forget(peer.address)
        terminate(self._context)


class WorkerSocket:
    """A worker's end.

    Args:
        descriptor: Descriptor of the listening socket that the main process has made for this one.
        driver: Process id of the main process, the only process that may connect.
    """

    def __init__(self, descriptor: int, driver: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = LINGER_MS
        self._socket.setsockopt(zmq.USE_FD, descriptor)
        if system.ADDRESSES_ARE_OPEN:
            self._socket.setsockopt(zmq.IPC_FILTER_PID, driver)
        # The listening socket has an address already: ZeroMQ needs this one only to know the kind of socket.
        self._socket.bind(system.BOUND)

    def send(self, frames: Frames) -> None:
        """Send to the main process; waits while that has too much to read."""
        self._socket.send_multipart(frames)

    def receive(self, block: bool) -> list[bytes] | None:
        """Return the next message, or ``None`` if ``block`` is false and no message has come."""
        while (frames := self._socket.recv_multipart() if block else self._next()) is not None:
            if frames[-1]:
                return [frames.pop(), *frames]
        return None

    def _next(self) -> list[bytes] | None:
        """Return the next frames, or ``None``. Reading the events first is cheaper than catching an exception."""
        try:
            is_there = int(self._socket.getsockopt(zmq.EVENTS)) & _POLLIN
            return self._socket.recv_multipart(_NOBLOCK) if is_there else None
        except zmq.Again:
            return None

    def wait(self, descriptor: int) -> None:
        """Wait until a message may have come or a descriptor is readable; :meth:`receive` must have had none before."""
        poll = select.poll()
        poll.register(int(self._socket.getsockopt(zmq.FD)), select.POLLIN)
        poll.register(descriptor, select.POLLIN)
        poll.poll()

    def close(self) -> None:
        """Close, after all messages were sent or :data:`LINGER_MS` is over."""
        self._socket.close()
        terminate(self._context)


def terminate(context: zmq.Context[Any]) -> None:
    """End a context whose sockets are closed, after their last messages were sent.

    ZeroMQ may wait forever for a connection that broke at a bad moment. The context is abandoned after :data:`TERM_S`.
    """
    thread = threading.Thread(target=context.term, name="parenv terminate", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # From Python 3.12 on, an interpreter that is ending starts no threads. The context ends with it.
        return
    thread.join(TERM_S)
    if thread.is_alive():
        _log.warning("ZeroMQ does not end within %g s, and its threads remain", TERM_S)
