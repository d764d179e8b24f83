"""Between machines: a driver that listens on TCP, and hosts that connect to it, over CURVE and nothing less.

Whatever they say is encrypted, and cannot be read, altered, repeated or left out by others without the connection
breaking. A host that a driver does not know cannot join, and a host knows its driver.

**At most a window of messages of a host waits to be read**, see :mod:`parenv.remote.net.window`. A host keeps the rest,
and :meth:`HostSocket.send` says so; the driver tells it of every half window that it has read. Without this, ZeroMQ
would stop reading from a host of which it holds enough. It would then not see its heartbeats either, so that the host
would take its driver for gone whenever this learns for longer than ``silence_s``.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Container, Sequence

import zmq

from parenv.errors import ConfigurationError, ProtocolError
from parenv.options import tcp_address
from parenv.protocol.data import Buffer
from parenv.remote.net import tcp
from parenv.remote.net.admission import Admission, host_of
from parenv.remote.net.host_keys import AllowList, DriverKeys, HostKeys, Known
from parenv.remote.net.link import EVENTS, Link, State
from parenv.remote.net.stream import Stream, Streams
from parenv.remote.net.window import Window
from parenv.transport.waiting import Polled, Waiting
from parenv.transport.zeromq import Frames, terminate

MAX_SKIPPED = 100


class HostListener:
    """The driver's end: listens for hosts, lets those in that it knows, and exchanges frames with them.

    Args:
        address: where to listen, such as ``tcp://192.0.2.7:5555``; ``*`` as the port, or 0, for any that is free.
        keys: of the driver.
        allowed: the hosts that may join.
        max_message_bytes: the largest message that a host may send, all frames together; the connection of one that
            sends more is ended.
        max_connections: how many hosts may be connected; by one key half as many, where others are listed.
        silence_s: seconds after which a connection on which nothing comes is taken to be cut.

    Attributes:
        address: where it listens, with the port.
        admission: who is let in, and which connections there are. :meth:`wait` returns when more of them have ended;
            what had come over these may still be waiting in :meth:`receive`.
        refusals: how many peers were refused, by reason; see :data:`parenv.remote.net.admission.REASONS`.

    Raises:
        ConfigurationError: the address is not one of TCP, or cannot be listened at.
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
        self._socket = tcp.listening_socket(self._context, keys, max_message_bytes)
        tcp.configure(self._socket, address)
        self.admission = Admission(
            self._context,
            self._socket,
            allowed,
            limits=tcp.limits(max_connections, max_message_bytes),
            silence_s=silence_s,
        )
        self.refusals = self.admission.refusals
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigurationError(f"cannot listen at {address}: {error.strerror}") from None
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._waiting = Waiting()
        self._waiting.watch(self)

    def wait(self, timeout_s: float) -> None:
        """Wait until a message has come or a connection has ended, or until the limit.

        Waits for :data:`parenv.transport.waiting.MAX_WAIT_S` at most.
        """
        self._waiting.wait(timeout_s)

    def polled(self) -> Sequence[tuple[Polled, int]]:
        """What to poll, for whoever waits for this among others."""
        return (self._socket, zmq.POLLIN), (self.admission.fileno(), zmq.POLLIN)

    def notice(self, ready: Container[object]) -> None:
        """Take note of connections that have ended."""
        if self.admission.fileno() in ready:
            self.admission.take()

    def send(self, peer: bytes, frames: Frames = (), credit: int = 0) -> bool:
        """Send to one host.

        Args:
            peer: as :meth:`receive` has named it.
            frames: none for a credit alone. They are copied, and may be altered afterwards.
            credit: how many messages more it may send.

        Returns:
            Whether it is on its way; false where there is no such host any more, or it does not take what it is sent.
        """
        stream = self._streams.of(peer)
        if stream is None:
            return False
        try:
            self._socket.send_multipart([peer, stream.seal(frames, credit)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        stream.sent_one()
        return True

    def receive(self) -> tuple[bytes, str, list[Buffer]] | None:
        """The next message, or ``None``.

        Returns:
            Which connection it comes from, the name of its host, and its frames.
        """
        for _ in range(MAX_SKIPPED):
            if (frames := tcp.received(self._socket)) is None:
                break
            peer, host = frames[0].bytes, host_of(str(frames[0].get("User-Id")))
            if parts := self._opened(peer, host, frames):
                return peer, host.name, parts
        return None

    def dismiss(self, peer: bytes, frames: Frames) -> None:
        """Send a host a last message, drop what it still sends, and end its connection soon after."""
        if (stream := self._streams.of(peer)) is not None:
            self.send(peer, frames)
            self._streams.ban(peer)
            self.admission.dismiss(stream.fd)

    def close(self, linger_s: float = 0.0) -> None:
        """Close. Idempotent.

        Args:
            linger_s: how long to wait for what was sent last to be on its way, in seconds.
        """
        if not self._socket.closed:
            tcp.close_monitored(self._socket, linger_s)
            self.admission.close()
            terminate(self._context)

    def _opened(self, peer: bytes, host: Known, whole: Sequence[zmq.Frame]) -> list[Buffer]:
        """The parts of a message that is to be delivered. If something is wrong with it, its connection is ended."""
        if (stream := self._streams.begin(peer)) is None:
            return []
        first, *frames = whole
        fd, refusal, nbytes = int(first.get(zmq.SRCFD)), "", sum(map(len, frames))
        parts: list[Buffer] = []
        try:
            _, parts = stream.open(tcp.only(frames))
        except ProtocolError:
            refusal = "sequence"
        # An identity that a peer has chosen could be taken for that of another.
        if len(peer) != 5 or peer[0]:
            refusal = "identity"
        refusal = refusal or self.admission.objection(host, stream.received == 1)
        if refusal:
            self._streams.ban(peer)
            self.admission.expel(refusal, fd, str(first.get("Peer-Address")))
            return []
        stream.fd = fd
        self.admission.heard(fd, host, nbytes)
        if read := stream.receipts.due(nbytes):
            self.send(peer, credit=read)
        return parts


class HostSocket:
    """A host's end: one connection to its driver.

    Args:
        address: where the driver listens, such as ``tcp://192.0.2.7:5555``.
        keys: of the host.
        silence_s: seconds after which a connection on which nothing comes is taken to be cut.

    Attributes:
        link: how the connection is, as far as :meth:`look` has seen.

    Raises:
        ConfigurationError: the address is not one of TCP.
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
        self._monitor = self._socket.get_monitor_socket(EVENTS)
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigurationError(f"cannot connect to {address}: {error.strerror}") from None
        self._endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def look(self) -> State:
        """How the connection is; does not wait.

        Returns:
            ``"connecting"``, as long as there is no answer; ``"connected"``; ``"refused"``, if the driver does not
            let this host in, or is not a driver; ``"lost"``, if it was connected and is not any more. A refused or
            lost connection stays so: make another one.
        """
        while not self._monitor.closed and self._monitor.poll(0):
            event = int.from_bytes(self._monitor.recv_multipart()[0][:2], sys.byteorder)
            if self.link.take_in(event) == "lost" and event == zmq.EVENT_DISCONNECTED:
                self._rescue()
        return self.link.state

    def polled(self) -> Sequence[tuple[Polled, int]]:
        """What to poll, for whoever waits for this among others."""
        writes = self._wants_to_write and self._window.is_open and self.link.state in ("connecting", "connected")
        return (self._socket, zmq.POLLIN | (zmq.POLLOUT if writes else 0)), (self._monitor, zmq.POLLIN)

    def notice(self, ready: Container[object]) -> None:
        """Take note of how the connection is."""
        if self._monitor in ready:
            self.look()

    def want_to_write(self, wanted: bool) -> None:
        """Say whether whoever waits for this shall also be woken when :meth:`send` can take a message."""
        self._wants_to_write = wanted

    def send(self, frames: Frames) -> bool:
        """Send to the driver, or, while it is not connected yet, as soon as it is.

        Args:
            frames: at least one. They are copied, and may be altered afterwards.

        Returns:
            Whether it was taken; false while as much waits for the driver as may, or if there is no connection and
            will be none.
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
        """The next message, or ``None``. What came before a connection was lost is not lost."""
        return self._last.popleft() if self._last else self._next()

    def close(self, linger_s: float = 1.0) -> None:
        """Close. Idempotent.

        Args:
            linger_s: how long to wait for what was sent last to be on its way, in seconds.
        """
        if not self._socket.closed:
            tcp.close_monitored(self._socket, linger_s if self.look() == "connected" else 0.0)
            self._monitor.close(0)
            terminate(self._context)

    def _next(self) -> list[Buffer] | None:
        for _ in range(MAX_SKIPPED):
            if (frames := tcp.received(self._socket)) is None:
                break
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
        """Keep what had come before the connection was lost, which is not to be read once it is given up."""
        self._last.extend(iter(self._next, None))
        self._give_up()

    def _give_up(self) -> None:
        """Without this, ZeroMQ would connect again, and go on in the middle of the conversation."""
        self.link.state = "lost"
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disconnect(self._endpoint)
