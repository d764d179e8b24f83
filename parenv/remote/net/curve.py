"""Encrypted messages between machines: the driver listens on TCP, and hosts connect to it. All connections use CURVE.

A third party cannot read messages. If it changes, repeats or drops one, the connection breaks. A host needs a key that
the driver knows, and knows the key of its driver.

**At most a window of messages of a host is unread**, see :mod:`parenv.remote.net.stream`. :meth:`HostSocket.send`
returns false beyond it, and the driver reports every half window that it has read.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Container, Sequence

import zmq

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.errors import ConfigurationError, ProtocolError
from parenv.options import tcp_address
from parenv.protocol.data import Buffer
from parenv.remote.net import tcp
from parenv.remote.net.admission import Admission
from parenv.remote.net.host_keys import AllowList, DriverKeys, HostKeys
from parenv.remote.net.stream import Stream, Streams, Window
from parenv.remote.net.tcp import EVENTS, Link, State
from parenv.transport.waiting import Polled, Waiting
from parenv.transport.zeromq import Frames, terminate


class HostListener:
    """The driver's end: admits known hosts and exchanges messages with them.

    Args:
        address: Address to listen at, such as ``tcp://192.0.2.7:5555``. Port ``*`` or 0: any free port.
        keys: Keys of the driver.
        allowed: Hosts that may join.
        max_message_bytes: Maximum size of a message of a host. A larger message ends its connection.
        max_connections: Maximum number of connected hosts.
        silence_s: Seconds after which a silent connection is closed.

    Attributes:
        address: Address with the port.
        admission: Admission of hosts. :meth:`wait` also returns when a connection has ended. Its last messages may
            still be waiting in :meth:`receive`.
        refusals: Number of refused peers by reason, see :data:`parenv.remote.net.admission.REASONS`.

    Raises:
        ConfigurationError: The address is not a TCP address, or is not available.
    """

    def __init__(
        self,
        address: str,
        keys: DriverKeys,
        allowed: AllowList,
        *,
        max_message_bytes: int,
        max_connections: int = 256,
        silence_s: float = 5.0,
    ) -> None:
        tcp_address(address)
        self._streams = Streams(max_connections, self.send)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = tcp.listening_socket(self._context, keys, max_message_bytes, silence_s)
        tcp.configure(self._socket, address)
        self.admission = Admission(self._context, self._socket, allowed, max_connections)
        self.refusals = self.admission.refusals.counts
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigurationError(f"cannot listen at {address}: {error.strerror}") from None
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._waiting = Waiting()
        self._waiting.watch(self)

    def wait(self, timeout_s: float) -> None:
        """Wait until a message has come or a connection has ended, up to a limit.

        The limit is ``timeout_s`` or :data:`parenv.transport.interrupts.MAX_WAIT_S`.
        """
        self._waiting.wait(timeout_s)

    def polled(self) -> Sequence[tuple[Polled, int]]:
        """Return the sources to poll and their events."""
        return (self._socket, zmq.POLLIN), (self.admission.fileno(), zmq.POLLIN)

    def notice(self, ready: Container[object]) -> None:
        """Process wake-ups about ended connections."""
        if self.admission.fileno() in ready:
            self.admission.take()

    def send(self, peer: bytes, frames: Frames = (), credit: int = 0) -> bool:
        """Send a message to a host.

        Args:
            peer: Connection of the host, from :meth:`receive`.
            frames: Parts of the message, which are copied. Default: only a credit.
            credit: Number of messages more that the host may send.

        Returns:
            Whether the message was sent. False: the host is gone, or does not read its messages.
        """
        stream = self._streams.of(peer)
        if stream is None:
            return False
        try:
            # A host that does not read must not block the main process.
            self._socket.send_multipart([peer, stream.seal(frames, credit)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        # A message that was not accepted is not counted, because a missing number ends the connection.
        stream.sent_one()
        return True

    def receive(self) -> tuple[bytes, str, list[Buffer]] | None:
        """Return the connection, the host's name and the frames of the next message, or ``None``."""
        while (frames := tcp.received(self._socket)) is not None:
            peer = frames[0].bytes
            if (stream := self._streams.begin(peer)) is not None and (parts := self._opened(peer, stream, frames)):
                return peer, stream.host, parts
        return None

    def dismiss(self, peer: bytes, frames: Frames) -> None:
        """Send a last message to a host, ignore its further messages, and close its connection soon."""
        if (stream := self._streams.of(peer)) is not None:
            self.send(peer, frames)
            self._streams.ban(peer)
            self.admission.dismiss(stream.fd)

    def close(self) -> None:
        """Close the socket, and drop messages that have not left. Idempotent."""
        if not self._socket.closed:
            # While ZeroMQ waited for messages to leave, it would read no others, and could abort: see rcvhwm in tcp.
            tcp.close_monitored(self._socket)
            self.admission.close()
            terminate(self._context)

    def _opened(self, peer: bytes, stream: Stream, whole: Sequence[zmq.Frame]) -> list[Buffer]:
        """Return the parts of a message, or close its connection and return none."""
        first, *frames = whole
        fd, key, address = int(first.get(zmq.SRCFD)), str(first.get("User-Id")).encode(), str(first.get("Peer-Address"))
        try:
            _, parts = stream.open(tcp.only(frames))
        except ProtocolError:
            return self._expel(peer, fd, address, "sequence")
        if stream.received == 1:
            stream.fd, stream.host = fd, self.admission.first_message(fd, key, address)
            if not stream.host:
                return self._expel(peer, fd, address)
        self.admission.heard(fd, key)
        if read := stream.receipts.due(sum(map(len, frames))):
            self.send(peer, credit=read)
        return parts

    def _expel(self, peer: bytes, fd: int, address: str, reason: str = "") -> list[Buffer]:
        # Further messages of the peer may already wait in the queue of the socket.
        self._streams.ban(peer)
        self.admission.expel(fd, address, reason)
        return []


class HostSocket:
    """A host's end: one connection to its driver.

    Args:
        address: Address of the driver, such as ``tcp://192.0.2.7:5555``.
        keys: Keys of the host.
        silence_s: Seconds after which a silent connection is lost.

    Attributes:
        link: State of the connection at the last :meth:`look`.

    Raises:
        ConfigurationError: The address is not a TCP address.
    """

    def __init__(self, address: str, keys: HostKeys, *, silence_s: float = 5.0) -> None:
        tcp_address(address, range(1, 65536))
        self.link = Link()
        self._window = Window()
        self._stream = Stream()
        self._wants_to_write = False
        self._last: deque[list[Buffer]] = deque()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = tcp.connecting_socket(self._context, keys, silence_s)
        tcp.configure(self._socket, address)
        self._monitor = tcp.monitor_of(self._context, self._socket, EVENTS)
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigurationError(f"cannot connect to {address}: {error.strerror}") from None
        self._endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def look(self) -> State:
        """Return the state of the connection without waiting.

        Returns:
            ``"connecting"``: no answer yet. ``"connected"``. ``"refused"``: the driver does not accept this host, or is
            not a driver. ``"lost"``: the connection has ended. A refused or lost connection cannot be used again.
        """
        while not self._monitor.closed and self._monitor.poll(0):
            event = int.from_bytes(self._monitor.recv_multipart()[0][:2], sys.byteorder)
            if self.link.take_in(event) == "lost" and event == zmq.EVENT_DISCONNECTED:
                self._rescue()
        return self.link.state

    def polled(self) -> Sequence[tuple[Polled, int]]:
        """Return the sources to poll and their events."""
        writes = self._wants_to_write and self._window.is_open and self.link.state in ("connecting", "connected")
        return (self._socket, zmq.POLLIN | (zmq.POLLOUT if writes else 0)), (self._monitor, zmq.POLLIN)

    def notice(self, ready: Container[object]) -> None:
        """Process events of the connection."""
        if self._monitor in ready:
            self.look()

    def want_to_write(self, wanted: bool) -> None:
        """Set whether :meth:`polled` includes the time when :meth:`send` accepts a message."""
        self._wants_to_write = wanted

    def send(self, frames: Frames) -> bool:
        """Send a message to the driver, after the connection is established.

        Args:
            frames: Parts of the message, at least one. They are copied.

        Returns:
            Whether the message was accepted. False: the window is full, or the connection is refused or lost.
        """
        if not self._window.is_open or self.link.state in ("refused", "lost"):
            return False
        sealed = self._stream.seal(frames)
        try:
            self._socket.send(sealed, zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._stream.sent_one()
        self._window.sent(len(sealed))
        return True

    def receive(self) -> list[Buffer] | None:
        """Return the next message, or ``None``. Messages that came before a loss can still be received."""
        return self._last.popleft() if self._last else self._next()

    def close(self, linger_s: float = 1.0) -> None:
        """Close the socket. Sent messages have up to ``linger_s`` seconds to leave. Idempotent."""
        if not self._socket.closed:
            # Without a connection, ZeroMQ would wait for the whole linger time.
            tcp.close_monitored(self._socket, linger_s if self.look() == "connected" else 0.0)
            self._monitor.close(0)
            terminate(self._context)

    def _next(self) -> list[Buffer] | None:
        while (frames := tcp.received(self._socket)) is not None:
            try:
                credit, parts = self._stream.open(tcp.only(frames))
            except ProtocolError:
                self._give_up()
                return None
            self._window.read(credit)
            if parts:
                return parts
        return None

    def _rescue(self) -> None:
        """Keep the messages that came before the loss: they cannot be read after the socket has disconnected."""
        self._last.extend(iter(self._next, None))
        self._give_up()

    def _give_up(self) -> None:
        # Without this, ZeroMQ would reconnect and continue in the middle of the conversation.
        self.link.state = "lost"
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disconnect(self._endpoint)
