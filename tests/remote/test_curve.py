"""Check the TCP connections of hosts and drivers: messages, flow control, encryption and detection of lost peers."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeVar

import pytest
import zmq
from exchange import LIMIT_S, Received, as_bytes, numbered
from proxy import Proxy
from scripts import printed_by

from parenv.errors import ConfigurationError
from parenv.options import RemotePlacement
from parenv.protocol.data import Buffer
from parenv.remote.net.curve import HostListener, HostSocket
from parenv.remote.net.host_keys import AllowList, ephemeral_keys
from parenv.remote.net.stream import BIG_BYTES, WINDOW
from parenv.transport import zeromq
from parenv.transport.waiting import Waiting

SILENCE_S = 1.0
DRIVER, HOST = ephemeral_keys()
End = TypeVar("End", HostListener, HostSocket)


class Pair:
    """A driver and its hosts in one thread, with further listeners if a test needs them."""

    def __init__(self) -> None:
        self.waiting = Waiting()
        self._open: list[HostListener | HostSocket] = []
        self._stalled: list[HostListener | HostSocket] = []
        self.listener = self.listen()

    def listen(self, address: str = "tcp://127.0.0.1:*", **more: Any) -> HostListener:
        allowed = AllowList([HOST.public.decode()])
        return self._opened(
            HostListener(address, DRIVER, allowed, **{"max_message_bytes": 1 << 21, "silence_s": SILENCE_S, **more})
        )

    def host(self, address: str = "") -> HostSocket:
        return self._opened(HostSocket(address or self.listener.address, HOST, silence_s=SILENCE_S))

    def _opened(self, end: End) -> End:
        self._open.append(end)
        self.waiting.watch(end)
        return end

    def close(self, end: HostListener | HostSocket, linger_s: float = 0.0) -> None:
        self._open.remove(end)
        if end not in self._stalled:
            self.waiting.unwatch(end)
        if isinstance(end, HostSocket):
            end.close(linger_s)
        else:
            end.close()

    def stall(self, host: HostSocket) -> None:
        """Stop serving the connection of a host."""
        self.waiting.unwatch(host)
        self._stalled.append(host)

    def close_all(self) -> None:
        for end in list(self._open):
            self.close(end)

    def connected(self, address: str = "") -> tuple[HostSocket, bytes]:
        """Return a host that has sent a message, and its connection on the driver's side."""
        host = self.host(address)
        assert host.send([b"hello"])
        peer, name, frames = self.get(self.listener.receive)
        assert (name, frames, host.look()) == ("host-0", [b"hello"], "connected")
        return host, peer

    def get(self, receive: Callable[[], Received | None]) -> Received:
        """Wait for the next message and return it."""
        deadline = time.monotonic() + LIMIT_S
        while (received := receive()) is None:
            assert time.monotonic() < deadline, "no message arrived in time"
            self.waiting.wait(1.0)
        return received

    def until(self, happened: Callable[[], bool], limit_s: float = LIMIT_S) -> float:
        """Wait until a condition holds; return the seconds that it took."""
        begun_s = time.monotonic()
        while not happened():
            assert time.monotonic() - begun_s < limit_s, "the condition did not hold in time"
            self.waiting.wait(min(SILENCE_S, limit_s) / 10)
        return time.monotonic() - begun_s

    def for_a_while(self, seconds: float) -> None:
        """Serve the connections for some seconds without receiving a message."""
        end_s = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end_s)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close_all()


@pytest.mark.parametrize("size", [0, 1, BIG_BYTES - 1, BIG_BYTES, 1 << 20])
def test_frames_pass_in_both_directions(pair: Pair, size: int) -> None:
    host, peer = pair.connected()
    content = bytes(range(251)) * (size // 251 + 1)
    for frames in ([memoryview(content)[:size]], [b"a", bytearray(content[:size]), b""], [b"", content[:size]]):
        expected = as_bytes(frames)
        assert host.send(frames)
        got = pair.get(pair.listener.receive)[2]
        assert as_bytes(got) == expected
        assert {type(frame) for frame in got if len(frame) < BIG_BYTES} <= {bytes}
        assert {type(frame) for frame in got if len(frame) >= BIG_BYTES} <= {memoryview}
        assert pair.listener.send(peer, frames)
        assert as_bytes(pair.get(host.receive)) == expected


def test_sent_buffers_may_be_altered_at_once(pair: Pair) -> None:
    host, peer = pair.connected()
    content = bytearray(b"x" * (1 << 20))
    assert host.send([memoryview(content)])
    assert pair.listener.send(peer, [memoryview(content)])
    content[:] = bytes(len(content))
    for receive in (lambda: pair.get(pair.listener.receive)[2], lambda: pair.get(host.receive)):
        assert set(bytes(receive()[0])) == {ord("x")}


def test_a_host_may_start_before_its_driver(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    host = pair.host(address)
    assert host.send([b"early"])
    pair.for_a_while(0.2)
    assert host.look() == "connecting"
    listener = pair.listen(address)
    assert pair.get(listener.receive)[2] == [b"early"]


def test_a_host_keeps_what_its_driver_does_not_read(pair: Pair) -> None:
    host, _ = pair.connected()
    host.want_to_write(True)
    sent = 0
    while host.send([b"%d" % sent]):
        sent += 1
    assert sent == WINDOW - 1, "the window includes the first message"
    begun_s = time.monotonic()
    poller = Waiting()
    poller.watch(host)
    poller.wait(0.3)
    assert time.monotonic() - begun_s > 0.25, "it must not wake up while its window is full"
    for number in range(WINDOW // 2):
        assert pair.get(pair.listener.receive)[2] == [b"%d" % number]
    pair.until(lambda: host.receive() is None and host.send([b"more"]))
    begun_s = time.monotonic()
    poller.wait(LIMIT_S)
    assert time.monotonic() - begun_s < LIMIT_S, "it must wake up when it can send again"
    host.want_to_write(False)
    poller.wait(0.0)
    begun_s = time.monotonic()
    poller.wait(0.3)
    assert time.monotonic() - begun_s > 0.25


@pytest.mark.more
def test_a_driver_may_learn_for_longer_than_a_silence(pair: Pair) -> None:
    host, _ = pair.connected()
    sent = 0
    while host.send(numbered(sent)):
        sent += 1
    pair.for_a_while(3 * SILENCE_S)
    assert host.look() == "connected"

    def say_more_and_listen() -> Any:
        nonlocal sent
        assert host.receive() is None
        sent += host.send(numbered(sent))
        return pair.listener.receive()

    for number in range(100):
        assert as_bytes(pair.get(say_more_and_listen)[2]) == as_bytes(numbered(number))
    assert (pair.listener.admission.ended, host.look()) == (0, "connected")


@pytest.mark.more
def test_a_host_may_be_quiet_for_longer_than_a_silence(pair: Pair) -> None:
    host, peer = pair.connected()
    pair.for_a_while(3 * SILENCE_S)
    assert (pair.listener.admission.ended, host.look()) == (0, "connected")
    assert pair.listener.send(peer, [b"still there?"])
    assert pair.get(host.receive) == [b"still there?"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("talking", ["nobody", "the host", "the driver"])
def test_a_cut_is_noticed_on_both_sides(pair: Pair, talking: str) -> None:
    with Proxy(pair.listener.address) as proxy:
        host, peer = pair.connected(proxy.address)

        def talk() -> None:
            if talking == "the host":
                host.send([b"x" * 1000])
            if talking == "the driver":
                pair.listener.send(peer, [b"x" * 1000])
            while pair.listener.receive() or host.receive():
                pass

        end_s = time.monotonic() + SILENCE_S / 2
        pair.until(lambda: talk() or time.monotonic() > end_s)
        proxy.silent.set()
        noticed: dict[str, float] = {}
        begun_s = time.monotonic()

        def both() -> bool:
            talk()
            if host.look() == "lost":
                noticed.setdefault("host", time.monotonic() - begun_s)
            if pair.listener.admission.ended:
                noticed.setdefault("driver", time.monotonic() - begun_s)
            return len(noticed) == 2

        pair.until(both)
        pair.until(lambda: not pair.listener.send(peer, [b"anybody?"]))


@pytest.mark.more
def test_a_lost_connection_stays_lost(pair: Pair) -> None:
    with Proxy(pair.listener.address) as proxy:
        host, peer = pair.connected(proxy.address)
        for number in range(3):
            assert pair.listener.send(peer, [b"%d" % number])
        pair.until(lambda: proxy.recorded[1].count(b"MESSAGE") >= 6)
        proxy.drop()
        pair.until(lambda: host.look() == "lost")
        assert [pair.get(host.receive) for _ in range(3)] == [[b"0"], [b"1"], [b"2"]], "received messages are kept"
        assert not host.send([b"are you there?"])
        pair.for_a_while(3 * SILENCE_S)
        assert host.look() == "lost"
        assert host.receive() is None
        assert pair.listener.admission.connections == 0
    again, other = pair.connected()
    assert other != peer
    assert again.look() == "connected"


def test_messages_of_a_stalled_host_over_a_second_connection_are_refused(pair: Pair) -> None:
    with Proxy(pair.listener.address) as proxy:
        host, _ = pair.connected(proxy.address)
        pair.stall(host)
        proxy.drop()
        pair.until(lambda: pair.listener.admission.ended == 1)
        pair.until(lambda: pair.listener.admission.connections == 1)
        assert host.send([b"in the middle"])
        pair.until(lambda: pair.listener.receive() is None and pair.listener.refusals["sequence"] == 1)
        pair.until(lambda: host.look() == "lost")


def test_the_end_of_a_host_wakes_its_driver(pair: Pair) -> None:
    host, peer = pair.connected()
    alone = Waiting()
    alone.watch(pair.listener)
    pair.close(host)
    begun_s = time.monotonic()
    alone.wait(LIMIT_S)
    assert time.monotonic() - begun_s < LIMIT_S
    assert pair.listener.admission.ended == 1
    pair.until(lambda: not pair.listener.send(peer, [b"anybody?"]))
    assert not pair.listener.refusals
    alone.wait(0.2)
    begun_s = time.monotonic()
    alone.wait(0.3)
    assert time.monotonic() - begun_s > 0.25, "the end must wake the driver only once"


def test_the_end_of_a_driver_wakes_its_hosts(pair: Pair) -> None:
    host, _ = pair.connected()
    pair.close(pair.listener)
    pair.until(lambda: host.look() == "lost")


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_messages_of_a_host_sent_before_closing_arrive(pair: Pair, size: int) -> None:
    host, _ = pair.connected()
    assert host.send([b"bye" * (size // 3)])
    pair.close(host, 1.0)
    assert bytes(pair.get(pair.listener.receive)[2][0]) == b"bye" * (size // 3)


def test_closing_does_not_wait_for_a_missing_driver(pair: Pair) -> None:
    host = pair.host("tcp://127.0.0.1:1")
    host.send([b"x"])
    begun_s = time.monotonic()
    pair.close(host, LIMIT_S)
    assert time.monotonic() - begun_s < LIMIT_S


@pytest.mark.more
def test_a_driver_survives_a_host_that_dies_before_its_messages_are_read() -> None:
    script = (
        "import threading, zmq\n"
        "from parenv.remote.net.curve import HostListener\n"
        "from parenv.remote.net.host_keys import AllowList, ephemeral_keys\n"
        "from parenv.remote.net.stream import Stream\n"
        "driver, keys = ephemeral_keys()\n"
        "allowed = AllowList([keys.public.decode()])\n"
        "listener = HostListener('tcp://127.0.0.1:*', driver, allowed, max_message_bytes=1 << 20, silence_s=0.5)\n"
        "context = zmq.Context()\n"
        "host, stream = context.socket(zmq.DEALER), Stream()\n"
        "host.linger = 0\n"
        "host.curve_serverkey = keys.driver_public\n"
        "host.curve_publickey, host.curve_secretkey = keys.public, keys.secret\n"
        "host.connect(listener.address)\n"
        "for number in range(300):\n"
        "    host.send(stream.seal([b'%d' % number + bytes(10000)]))\n"
        "    stream.sent_one()\n"
        "learning = threading.Event()\n"
        "listener.wait(60.0)\n"
        "learning.wait(0.3)\n"
        "host.close()\n"
        "learning.wait(2.0)\n"
        "numbers = []\n"
        "while (received := listener.receive()) is not None:\n"
        "    numbers.append(int(bytes(received[2][0]).rstrip(b'\\0')))\n"
        "assert numbers == list(range(len(numbers))), numbers\n"
        "while listener.admission.connections:\n"
        "    listener.wait(0.1)\n"
        "    listener.receive()\n"
        "print(len(numbers) > 0)\n"
        "listener.close()\n"
        "context.term()\n"
    )
    assert printed_by(script) == "True\n"


def test_streams_of_hosts_that_are_gone_are_forgotten(pair: Pair) -> None:
    listener = pair.listen(max_connections=3)
    stays = pair.host(listener.address)
    assert stays.send([b"first"])
    peer = pair.get(listener.receive)[0]
    for _ in range(20):
        with closing(HostSocket(listener.address, HOST)) as host:
            assert host.send([b"x"])
            pair.get(listener.receive)
        pair.until(lambda: listener.admission.connections == 1)
    assert len(listener._streams._of) <= 6
    assert listener.send(peer, [b"last"])
    assert pair.get(stays.receive) == [b"last"]
    assert stays.send([b"second"])
    assert pair.get(listener.receive)[2] == [b"second"]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:5555",
        "ipc:///tmp/x",
        "inproc://x",
        "udp://127.0.0.1:5555",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://127.0.0.1:99999",
        "tcp://:5555",
        "tcp://a b:5555",
        "tcp://::1:5555",
        "tcp://127.0.0.1:5555;127.0.0.1:5556",
        "tcp://0:5555",
        "tcp://127.1:5555",
        "tcp://[127.0.0.1:5555",
        "tcp://[not-an-ip]:5555",
    ],
)
def test_an_address_must_be_a_tcp_address(address: str) -> None:
    with pytest.raises(ConfigurationError, match="an address must be of the form tcp"):
        HostListener(address, DRIVER, AllowList([HOST.public.decode()]), max_message_bytes=1 << 20)
    with pytest.raises(ConfigurationError, match="an address must be of the form tcp"):
        HostSocket(address, HOST)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "tcp://127.0.0.1:0"])
def test_a_host_needs_the_port_of_its_driver(address: str) -> None:
    with pytest.raises(ConfigurationError, match="an address must be of the form tcp"):
        HostSocket(address, HOST)


def test_an_address_that_cannot_be_bound_is_named(pair: Pair) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot listen at {pair.listener.address}: Address already in use"):
        pair.listen(pair.listener.address)
    with pytest.raises(ConfigurationError, match=r"cannot listen at tcp://192\.0\.2\.1:5555"):
        pair.listen("tcp://192.0.2.1:5555")


@pytest.mark.parametrize("more", [{"silence_s": 0.1}, {"silence_s": 1e9}, {"max_message_bytes": 100}])
def test_numbers_out_of_range_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(more))):
        RemotePlacement("tcp://127.0.0.1:*", key="driver.key", hosts="hosts.pub", **more)


@pytest.mark.parametrize("asked", ["tcp://127.0.0.1:*", "tcp://127.0.0.1:0", "tcp://*:*"])
def test_any_free_port_can_be_asked_for(pair: Pair, asked: str) -> None:
    listener = pair.listen(asked)
    assert int(listener.address.rpartition(":")[2]) > 0


def test_it_works_over_ipv6(pair: Pair) -> None:
    try:
        listener = pair.listen("tcp://[::1]:*")
    except ConfigurationError:
        pytest.skip("there is no IPv6 on this machine")
    host = pair.host(listener.address)
    assert host.send([b"over IPv6"])
    assert pair.get(listener.receive)[2] == [b"over IPv6"]
    stranger = zmq.Context()
    with stranger.socket(zmq.DEALER) as peer:
        peer.ipv6, peer.linger = True, 0
        peer.connect(listener.address)
        pair.until(lambda: sum(listener.refusals.values()) > 0)
    stranger.term()


def test_both_ends_are_waited_for_at_once(pair: Pair) -> None:
    host, peer = pair.connected()
    waiting = Waiting()
    waiting.watch(host)
    waiting.watch(pair.listener)
    waiting.wait(0.0)
    for speak, heard in (
        (lambda: pair.listener.send(peer, [b"order"]), host.receive),
        (lambda: host.send([b"report"]), pair.listener.receive),
    ):
        begun_s = time.monotonic()
        assert waiting.wait(0.2) == set()
        assert time.monotonic() - begun_s > 0.15, "no message has been sent yet"
        assert speak()
        received: object = None
        while received is None:
            assert waiting.wait(LIMIT_S) == set()
            received = heard()
        assert time.monotonic() - begun_s < LIMIT_S
    waiting.unwatch(pair.listener)
    pair.close(host)
    waiting.unwatch(host)
    assert waiting.wait(0.0) == set()


def test_descriptors_are_watched_too(pair: Pair) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiting = Waiting()
        waiting.watch(pair.listener)
        waiting.watch(ours.fileno())
        assert waiting.wait(0.0) == set()
        theirs.send(b"x")
        assert waiting.wait(LIMIT_S) == {ours.fileno()}
        waiting.unwatch(ours.fileno())
        assert waiting.wait(0.0) == set()
        host = pair.host()
        waiting.watch(host)
        pair.until(lambda: host.look() == "connected" or bool(waiting.wait(0.1)))
        waiting.unwatch(host)


SECRETS: dict[str, bytes] = {"observations": b"obs-" * 5000, "weights": bytes(range(256)) * 300}


def looked_for() -> dict[str, bytes]:
    keys = {"host public": HOST.public, "host secret": HOST.secret, "driver secret": DRIVER.secret}
    raw = {f"{name}, raw": zmq.utils.z85.decode(key) for name, key in keys.items()}
    return {**{name: content[100:132] for name, content in SECRETS.items()}, **keys, **raw}


def overheard(proxy: Proxy) -> set[str]:
    heard = bytes(proxy.recorded[0]) + bytes(proxy.recorded[1])
    return {name for name, content in looked_for().items() if content in heard}


def everything() -> list[Buffer]:
    """Return frames with everything that must not be readable in the traffic, including the keys."""
    return [*SECRETS.values(), *(content for name, content in looked_for().items() if name not in SECRETS)]


def test_traffic_is_encrypted(pair: Pair) -> None:
    with Proxy(pair.listener.address) as proxy:
        host, peer = pair.connected(proxy.address)
        assert host.send(everything())
        assert as_bytes(pair.get(pair.listener.receive)[2]) == as_bytes(everything())
        assert pair.listener.send(peer, everything())
        assert as_bytes(pair.get(host.receive)) == as_bytes(everything())
        assert len(proxy.recorded[0]) > 50_000
        assert len(proxy.recorded[1]) > 50_000
        assert overheard(proxy) == set()
        assert b"CURVE" in proxy.recorded[0]


def test_the_proxy_can_read_unencrypted_traffic() -> None:
    context = zmq.Context()
    with context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        router.linger = dealer.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with Proxy(f"tcp://127.0.0.1:{port}") as proxy:
            dealer.connect(proxy.address)
            dealer.send_multipart(everything())
            assert router.poll(LIMIT_S * 1000)
            router.send_multipart([router.recv_multipart()[0], *everything()])
            assert dealer.poll(LIMIT_S * 1000)
            assert overheard(proxy) == set(looked_for())
    context.term()


def test_a_context_that_does_not_end_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zeromq, "TERM_S", 0.1)
    context = zmq.Context()
    with context.socket(zmq.PAIR), caplog.at_level(logging.WARNING, logger="parenv"):
        zeromq.terminate(context)
    assert [record.getMessage() for record in caplog.records] == [
        "ZeroMQ does not end within 0.1 s, and its threads remain"
    ]
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "parenv terminate"]
    thread.join(LIMIT_S)
