"""A ROUTER socket in the driver, a DEALER socket in each worker."""

from __future__ import annotations

import logging
import select
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

import zmq

from parenv.transport.waiting import Waiting

Frames = Sequence[bytes | bytearray | memoryview]
_ROUTING_ID = struct.Struct("!cII")
_POLLIN = int(zmq.POLLIN)
LINGER_MS = 1000
TERM_S = 10.0
_log = logging.getLogger("parenv")


class DriverSocket(Waiting):
    """The driver's end: frames to and from every worker, and what else is waited for together with them.

    Args:
        address: where to listen, such as ``ipc:///run/user/1000/x``.
    """

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.bind(address)
        super().__init__(self._socket)

    def send(self, worker: int, generation: int, frames: Frames) -> bool:
        """Send to one worker; whether there is such a worker to send to."""
        try:
            self._socket.send_multipart([_routing_id(worker, generation), *frames], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def receive(self) -> list[bytes] | None:
        """The next message, or ``None``."""
        frames = _next_message(self._socket)
        return frames and frames[1:]

    def close(self) -> None:
        """Close; what was not sent yet is dropped. Idempotent."""
        self._socket.close()
        terminate(self._context)


class WorkerSocket:
    """A worker's end.

    Args:
        address: where the driver listens.
        worker: index of the worker.
        generation: how often it has been started.
    """

    def __init__(self, address: str, worker: int, generation: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = LINGER_MS
        self._socket.setsockopt(zmq.ROUTING_ID, _routing_id(worker, generation))
        self._socket.connect(address)

    def send(self, frames: Frames) -> None:
        """Send to the driver."""
        self._socket.send_multipart(frames)

    def receive(self, block: bool) -> list[bytes] | None:
        """The next message; ``None`` if there is none and ``block`` is false."""
        return self._socket.recv_multipart() if block else _next_message(self._socket)

    def wait(self, descriptor: int) -> None:
        """Wait until a message may have come or a descriptor is readable; :meth:`receive` must have had none before."""
        poll = select.poll()
        poll.register(int(self._socket.getsockopt(zmq.FD)), select.POLLIN)
        poll.register(descriptor, select.POLLIN)
        poll.poll()

    def close(self) -> None:
        """Close, after what was sent is on its way or :data:`LINGER_MS` is over."""
        self._socket.close()
        terminate(self._context)


def terminate(context: zmq.Context[Any]) -> None:
    """End a context whose sockets are closed, after what they have still to send.

    ZeroMQ may wait for ever for a connection that broke at a bad moment; then, after :data:`TERM_S`, it is left alone.
    """
    thread = threading.Thread(target=context.term, name="parenv terminate", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # The interpreter is ending, which from 3.12 on takes no new threads, and the context ends with it.
        return
    thread.join(TERM_S)
    if thread.is_alive():
        _log.warning("ZeroMQ does not end within %g s; it is left behind", TERM_S)


def _next_message(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    """Asks first: to be told by an exception that there is none takes twice as long, at every rollout."""
    try:
        return socket.recv_multipart(zmq.NOBLOCK) if int(socket.getsockopt(zmq.EVENTS)) & _POLLIN else None
    except zmq.Again:
        return None


def _routing_id(worker: int, generation: int) -> bytes:
    return _ROUTING_ID.pack(b"w", worker, generation)


def remaining(deadline: float) -> float:
    """Seconds until a deadline on the monotonic clock, never negative."""
    return max(0.0, deadline - time.monotonic())
