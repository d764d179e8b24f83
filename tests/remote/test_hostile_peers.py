"""Check that peers that may not join are refused, counted and logged once, while admitted hosts continue."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq
from exchange import LIMIT_S, Exchange, as_bytes, numbered
from proxy import GREETING_BYTES, Proxy
from sampling import one_in

from parenv.remote.net import tcp
from parenv.remote.net.admission import REASONS
from parenv.remote.net.connections import shut
from parenv.remote.net.curve import HostListener, HostSocket
from parenv.remote.net.host_keys import (
    AllowList,
    DriverKeys,
    HostKeys,
    add_host,
    create_keys,
    ephemeral_keys,
    read_driver_keys,
    read_host_keys,
    replace,
)
from parenv.remote.net.stream import Stream

MAX_BYTES = 1 << 20
SILENCE_S = 5.0
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"


def greeting(mechanism: bytes, version: bytes = b"\3\1") -> bytes:
    return SIGNATURE + version + mechanism.ljust(20, b"\0") + bytes(32)


READY = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
HELLO = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + bytes(range(120))


class Scene:
    """Driver and its host alpha, which exchange messages while other peers connect.

    Attributes:
        listener: Listener of the driver.
        talk: Exchange of messages with alpha.
        folder: Directory with the keys.
    """

    def __init__(self, folder: Path, stack: ExitStack, max_bytes: int, max_connections: int) -> None:
        self.folder = folder
        self._stack = stack
        create_keys(folder, ["alpha", "beta"])
        self.driver_keys: DriverKeys = read_driver_keys(folder / "driver.key")
        self.listener = HostListener(
            "tcp://127.0.0.1:*",
            self.driver_keys,
            AllowList(folder / "hosts.pub"),
            max_message_bytes=max_bytes,
            max_connections=max_connections,
            silence_s=SILENCE_S,
        )
        stack.callback(self.listener.close)
        self.talk = stack.enter_context(Exchange(self.listener, self.host("alpha"), "alpha"))

    @property
    def address(self) -> str:
        return self.listener.address

    @property
    def refusals(self) -> dict[str, int]:
        return dict(self.listener.refusals)

    def keys(self, name: str) -> HostKeys:
        return read_host_keys(self.folder / f"{name}.key")

    def host(self, keys: str | HostKeys, address: str = "", silence_s: float = SILENCE_S) -> HostSocket:
        held = self.keys(keys) if isinstance(keys, str) else keys
        made = HostSocket(address or self.address, held, silence_s=silence_s)
        self._stack.callback(made.close, 0.0)
        return made

    def dealer(self, keys: HostKeys | None = None) -> zmq.Socket[bytes]:
        """Return a plain ZeroMQ socket that is not connected yet."""
        context = zmq.Context()
        self._stack.callback(context.term)
        made = context.socket(zmq.DEALER)
        self._stack.callback(made.close, 0)
        if keys is not None:
            made.curve_serverkey = keys.driver_public
            made.curve_publickey, made.curve_secretkey = keys.public, keys.secret
        return made

    def raw(self, *sent: bytes) -> socket.socket:
        """Open a TCP connection and send data."""
        port = int(self.address.rpartition(":")[2])
        made = self._stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), LIMIT_S)))
        made.sendall(b"".join(sent))
        return made

    def until_refused(self, reason: str, times: int = 1) -> None:
        self.talk.until(lambda: self.listener.refusals[reason] >= times)


@pytest.fixture
def handshake_s() -> float:
    return tcp.HANDSHAKE_S


@pytest.fixture
def reconnect_ms() -> int:
    """Disable reconnecting: a host that detects the end of its connection late would be refused and counted again."""
    return -1


@pytest.fixture
def max_bytes() -> int:
    return MAX_BYTES


@pytest.fixture
def max_connections() -> int:
    return 256


@pytest.fixture
def scene(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    handshake_s: float,
    reconnect_ms: int,
    max_bytes: int,
    max_connections: int,
) -> Iterator[Scene]:
    """Yield the scene of a test; afterwards, check that no key was logged and no message was logged twice."""
    monkeypatch.setattr(tcp, "HANDSHAKE_S", handshake_s)
    monkeypatch.setattr(tcp, "RECONNECT_MS", reconnect_ms)
    with ExitStack() as stack, caplog.at_level(logging.DEBUG):
        made = Scene(tmp_path / "keys", stack, max_bytes, max_connections)
        yield made
        made.talk.turn()
    shown = [key for path in made.folder.glob("*.key") for key in keys_in(path) if key[:8] in caplog.text]
    assert not shown
    assert len(set(caplog.messages)) == len(caplog.messages), "logged twice"
    assert {record.name for record in caplog.records} <= {"parenv"}


def keys_in(path: Path) -> list[str]:
    return [line.split()[1] for line in path.read_text().splitlines() if not line.startswith("#")]


def logged_once(caplog: pytest.LogCaptureFixture, reason: str) -> bool:
    """Return whether the refusals for a reason were logged, and at most once per address.

    The address is unknown if a peer disconnects before the driver looks at it.
    """
    messages = [message for message in caplog.messages if REASONS[reason] in message]
    of = {f"refused a connection from {peer}: {REASONS[reason]}" for peer in ("127.0.0.1", "an unknown address")}
    return (
        bool(messages)
        and all(sum(message.startswith(first) for message in messages) <= 1 for first in of)
        and all(message.startswith(tuple(of)) for message in messages)
    )


def drain(peer: socket.socket) -> bytes:
    """Return all data that the driver sends until it closes the connection."""
    said = bytearray()
    try:
        while data := peer.recv(4096):
            said += data
    except ConnectionResetError:
        pass
    return bytes(said)


@dataclass(frozen=True)
class Stranger:
    """Peer that sends data over TCP without identifying itself as a host.

    Args:
        says: Data that it sends.
        times: Number of such peers.
        hangs_up: Whether the peer closes the connection itself.
        handshake_s: Time limit of a handshake, in seconds.
    """

    says: tuple[bytes, ...]
    times: int = 1
    hangs_up: bool = False
    handshake_s: float = 5.0


ENDLESS = b"\x06" + (MAX_BYTES - 100).to_bytes(8, "big") + bytes(1 << 18)
HALVES = {
    "nothing": (),
    "half a signature": (SIGNATURE[:5],),
    "half a greeting": (greeting(b"CURVE")[:40],),
    "a greeting": (greeting(b"CURVE"),),
    "half a hello": (greeting(b"CURVE"), HELLO[:100]),
}
SCANS = {"": b"", "a signature": SIGNATURE, "a greeting": greeting(b"CURVE"), "more": greeting(b"CURVE") + HELLO[:100]}
MECHANISMS = (b"NULL", b"PLAIN", b"GSSAPI", b"curve", b"CURVE2")
STRANGERS = {
    "http": Stranger((b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",)),
    "an endless command": Stranger((greeting(b"CURVE"), ENDLESS), times=3, handshake_s=0.5),
    "garbage": Stranger((bytes(range(256)),)),
    "tls": Stranger((b"\x16\x03\x01\x02\x00\x01\x00",)),
    "zmtp 1": Stranger((SIGNATURE, b"\0\0")),
    "zmtp 2": Stranger((SIGNATURE, b"\1\5", bytes(60))),
    "no command": Stranger((greeting(b"CURVE"), b"\x04\x05\x05HELL")),
    "a giant command": Stranger((greeting(b"CURVE"), b"\x06" + (1 << 62).to_bytes(8, "big"), b"x" * 1000)),
    "a message": Stranger((greeting(b"CURVE"), b"\x00\x05hello")),
    "a false hello": Stranger((greeting(b"CURVE"), HELLO)),
    **{f"mechanism {one.decode()}": Stranger((greeting(one), READY), times=3) for one in MECHANISMS},
    **{f"stops after {name}": Stranger(says, times=3, handshake_s=0.5) for name, says in HALVES.items()},
    **{f"scans ports {name}": Stranger((says,), times=100, hangs_up=True) for name, says in SCANS.items()},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("what", "handshake_s"), [(what, one.handshake_s) for what, one in STRANGERS.items()])
def test_a_stranger_is_refused_and_logged_once(scene: Scene, caplog: pytest.LogCaptureFixture, what: str) -> None:
    stranger, peers = STRANGERS[what], []
    for _ in range(stranger.times):
        peers.append(scene.raw(*stranger.says))
        if stranger.hangs_up:
            peers.pop().close()
    scene.until_refused("handshake", stranger.times)
    assert scene.refusals == {"handshake": stranger.times}
    assert logged_once(caplog, "handshake")
    for peer in peers:
        drain(peer)
    scene.talk.until(lambda: scene.listener.admission.connections == 1)
    assert not scene.talk.others


def offer_a_password(peer: Any) -> None:
    peer.plain_username, peer.plain_password = b"alpha", b"secret"


SEVERAL = (Stream().seal([b"let me in"]), b"and this")
DEALERS: dict[str, tuple[str, Callable[[Any], object], tuple[bytes, ...]]] = {
    "without a key": ("handshake", lambda peer: None, (b"let me in",)),
    "a password": ("handshake", offer_a_password, (b"let me in",)),
    "a message of several frames": ("sequence", lambda peer: None, SEVERAL),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("what", DEALERS)
def test_another_program_over_zeromq_is_refused(scene: Scene, caplog: pytest.LogCaptureFixture, what: str) -> None:
    reason, prepare, frames = DEALERS[what]
    peer = scene.dealer(scene.keys("beta") if reason == "sequence" else None)
    peer.reconnect_ivl = 60_000
    prepare(peer)
    peer.connect(scene.address)
    peer.send_multipart(frames)
    scene.until_refused(reason)
    scene.talk.until(lambda: scene.listener.admission.connections == 1)
    assert scene.refusals == {reason: 1}
    assert logged_once(caplog, reason)
    assert not scene.talk.others


@pytest.mark.parametrize("reconnect_ms", [tcp.RECONNECT_MS])
def test_a_host_of_another_driver_is_refused(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    lost = scene.host(HostKeys(scene.keys("beta").public, scene.keys("beta").secret, ephemeral_keys()[0].public))
    lost.send([b"let me in"])
    scene.until_refused("handshake", 2)
    scene.talk.until(lambda: lost.look() == "connecting" and lost.link.broken_handshakes > 1)
    assert set(scene.refusals) == {"handshake"}
    assert logged_once(caplog, "handshake")
    assert not scene.talk.others


def test_a_key_off_the_list_is_refused(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1, 4):
        stranger = scene.host(HostKeys(*zmq.curve_keypair(), scene.driver_keys.public))
        stranger.send([b"let me in"])
        scene.talk.until(lambda stranger=stranger: stranger.look() == "refused")  # type: ignore[misc]
        assert scene.refusals == {"key": number}
        assert not stranger.send([b"please"])
    assert logged_once(caplog, "key")
    assert not scene.talk.others


@pytest.mark.parametrize("handshake_s", [60.0])
def test_a_thousand_idle_connections_shut_no_host_out(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    idle = []
    for number in range(1000):
        idle.append(scene.raw())
        if number % 50 == 0:
            scene.talk.turn()
    scene.until_refused("too many strangers", 1000 - 256)
    scene.talk.until(lambda: scene.listener.admission.connections == 257)
    assert scene.refusals == {"too many strangers": 1000 - 256}
    assert logged_once(caplog, "too many strangers")
    late = scene.host("beta")
    late.send([b"here I am"])
    scene.talk.until(lambda: scene.talk.others == [("beta", [b"here I am"])])
    assert scene.refusals == {"too many strangers": 1000 - 255}
    for peer in idle:
        peer.close()
    scene.talk.until(lambda: scene.listener.admission.connections == 2)
    assert scene.refusals == {"too many strangers": 1000 - 255, "handshake": 255}


def test_300_strangers_at_once_cost_no_descriptor(scene: Scene) -> None:
    before = len(os.listdir("/dev/fd"))
    peers = [scene.raw() for _ in range(300)]
    scene.until_refused("too many strangers", 300 - 256)
    scene.talk.until(lambda: scene.listener.admission.connections == 257)
    assert len(os.listdir("/dev/fd")) - len(peers) - before <= 256
    for peer in peers:
        peer.close()
    scene.talk.until(lambda: scene.listener.admission.connections == 1)
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("max_connections", [2])
def test_hosts_beyond_max_connections_are_refused(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    second = scene.host("beta")
    assert second.send([b"me"])
    scene.talk.until(lambda: bool(scene.talk.others))
    third = scene.host("beta")
    assert third.send([b"me too"])
    scene.talk.until(lambda: third.look() == "lost")
    assert scene.refusals == {"too many connections": 1}
    assert logged_once(caplog, "too many connections")
    assert scene.talk.others == [("beta", [b"me"])]
    assert second.look() == "connected"


def test_an_exception_in_admission_is_logged_and_admission_continues(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(keys: object) -> None:
        patch.undo()
        raise ZeroDivisionError("somewhere in admission")

    with monkeypatch.context() as patch:
        patch.setattr(scene.listener.admission._allowed, "removed", fail)
        scene.talk.until(lambda: "ZeroDivisionError: somewhere in admission" in caplog.text)
    host = scene.host("beta")
    assert host.send([b"still here?"])
    scene.talk.until(lambda: scene.talk.others == [("beta", [b"still here?"])])
    stranger = scene.host(HostKeys(*zmq.curve_keypair(), scene.driver_keys.public))
    scene.talk.until(lambda: stranger.look() == "refused")


def recorded(scene: Scene) -> tuple[bytes, bytes]:
    """Return the traffic from beta to the driver, and from the driver to beta."""
    with Proxy(scene.address) as proxy:
        host = scene.host("beta", proxy.address)
        host.send([b"a secret"])
        scene.talk.until(lambda: host.receive() == [b"a secret"])
        host.close()
        scene.talk.until(lambda: scene.listener.admission.connections == 1)
        return bytes(proxy.recorded[0]), bytes(proxy.recorded[1])


@pytest.mark.parametrize("in_steps", [True, False])
def test_a_replayed_handshake_is_refused(scene: Scene, caplog: pytest.LogCaptureFixture, in_steps: bool) -> None:
    said, _ = recorded(scene)
    assert scene.talk.others == [("beta", [b"a secret"])]
    assert not scene.refusals
    hello = GREETING_BYTES + len(HELLO)
    peer = scene.raw(said[:hello] if in_steps else said)
    answer = b""
    while in_steps and b"WELCOME" not in answer:
        answer += peer.recv(4096)
    if in_steps:
        peer.sendall(said[hello:])
    scene.until_refused("handshake")
    assert b"READY" not in drain(peer)
    assert scene.refusals == {"handshake": 1}
    assert logged_once(caplog, "handshake")
    assert scene.talk.others == [("beta", [b"a secret"])]


def test_a_host_refuses_replayed_messages_of_its_driver(scene: Scene) -> None:
    _, said = recorded(scene)
    with socket.create_server(("127.0.0.1", 0)) as pretender:
        host = scene.host("beta", f"tcp://127.0.0.1:{pretender.getsockname()[1]}")
        host.send([b"my secret"])
        connection, _ = pretender.accept()
        with connection:
            connection.sendall(said)
            scene.talk.until(lambda: host.look() == "refused")
            assert host.receive() is None
            assert b"INITIATE" not in drain(connection)


def test_a_host_trusts_only_its_driver(scene: Scene) -> None:
    other = HostListener(
        "tcp://127.0.0.1:*",
        ephemeral_keys()[0],
        AllowList([scene.keys("beta").public.decode()]),
        max_message_bytes=1024,
    )
    with closing(other):
        host = scene.host("beta", other.address)
        host.send([b"my secret"])
        scene.talk.until(lambda: other.refusals["handshake"] > 0)
        assert host.look() == "connecting"
        assert other.receive() is None


def test_an_oversize_frame_ends_the_connection_of_its_sender_alone(scene: Scene) -> None:
    host = scene.host("beta")
    for size in (MAX_BYTES - 20, MAX_BYTES + 1):
        assert host.send([b"size", bytes(size)])
    scene.talk.until(lambda: host.look() == "lost")
    scene.talk.until(lambda: scene.listener.admission.ended > 0 and bool(scene.talk.others))
    assert [[len(frame) for frame in frames] for _, frames in scene.talk.others] == [[4, MAX_BYTES - 20]]


def test_a_connection_that_ends_during_its_first_message_is_one_of_a_host(scene: Scene) -> None:
    scene.talk.turn()  # The other host is known from now on.
    admission, host = scene.listener.admission, scene.host("beta")
    heard = admission.heard

    def ends_meanwhile(fd: int, key: bytes) -> None:
        connection = admission._live.get(fd)
        if connection is not None and not connection.key:
            shut(fd, connection.port)
            deadline = time.monotonic() + LIMIT_S
            while admission._live.get(fd) is connection and time.monotonic() < deadline:
                time.sleep(0.001)
        heard(fd, key)

    admission.heard = ends_meanwhile  # type: ignore[method-assign]
    host.send([b"first"])
    scene.talk.until(lambda: admission.ended > 0 or bool(scene.refusals))
    assert (admission.ended, scene.refusals) == (1, {})


def test_a_host_that_is_removed_cannot_come_back(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    listed = scene.folder / "hosts.pub"
    before = listed.read_text()
    host = scene.host("beta")
    scene.talk.until(lambda: host.look() == "connected")
    replace(listed, "".join(line for line in before.splitlines(True) if not line.startswith("beta")))
    host.close()
    back = scene.host("beta")
    scene.talk.until(lambda: back.look() == "refused")
    assert scene.refusals == {"key": 1}
    replace(listed, before)
    again = scene.host("beta")
    scene.talk.until(lambda: again.look() == "connected")
    added = scene.host(read_host_keys(add_host(scene.folder, "gamma")))
    added.send([b"new here"])
    scene.talk.until(lambda: scene.talk.others == [("gamma", [b"new here"])])


def test_the_connection_of_a_host_that_is_removed_is_ended(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    listed = scene.folder / "hosts.pub"
    before = listed.read_text()
    host = scene.host("beta")
    assert host.send([b"before"])
    scene.talk.until(lambda: scene.talk.others == [("beta", [b"before"])])
    replace(listed, "".join(line for line in before.splitlines(True) if not line.startswith("beta")))
    scene.talk.until(lambda: host.look() != "connected")
    scene.until_refused("key")
    assert logged_once(caplog, "key")


def test_a_host_that_is_removed_before_its_first_message_does_not_join(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    listed = scene.folder / "hosts.pub"
    before = listed.read_text()
    host = scene.host("beta")
    scene.talk.until(lambda: host.look() == "connected")
    replace(listed, "".join(line for line in before.splitlines(True) if not line.startswith("beta")))
    for _ in range(20):
        scene.talk.turn()
    assert host.send([b"let me in"])
    scene.talk.until(lambda: host.look() == "lost")
    assert scene.refusals == {"key": 1}
    assert logged_once(caplog, "key")
    assert not scene.talk.others


def test_a_key_is_refused_after_its_name_was_given_to_another_key(scene: Scene) -> None:
    listed = scene.folder / "hosts.pub"
    before = listed.read_text()
    host = scene.host("beta")
    scene.talk.until(lambda: host.look() == "connected")
    (line,) = [line for line in before.splitlines() if line.startswith("beta")]
    replace(listed, before.replace(line, f"beta {zmq.curve_keypair()[0].decode()}"))
    assert host.send([b"let me in"])
    scene.talk.until(lambda: host.look() == "lost")
    assert scene.refusals == {"key": 1}
    assert not scene.talk.others


def test_no_host_joins_while_the_allow_list_is_unreadable(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    listed = scene.folder / "hosts.pub"
    before = listed.read_text()
    replace(listed, "half a li")
    host = scene.host("beta")
    scene.talk.until(lambda: host.look() == "refused")
    assert scene.refusals == {"allow list": 1}
    assert logged_once(caplog, "allow list")
    assert "hosts.pub, line 1: a line must be a name and a public" in caplog.text
    replace(listed, before)
    again = scene.host("beta")
    scene.talk.until(lambda: again.look() == "connected")
    assert scene.refusals == {"allow list": 1}


@pytest.mark.parametrize(("handshake_s", "reconnect_ms"), [(0.5, tcp.RECONNECT_MS)])
def test_no_host_joins_without_the_admission_thread(scene: Scene) -> None:
    admission = scene.listener.admission
    admission._ending.notify()
    admission._thread.join()
    admission._authenticator.stop()
    host = scene.host("beta")
    host.send([b"let me in"])
    scene.talk.until(lambda: host.look() != "connecting" or host.link.broken_handshakes > 1 or bool(scene.talk.others))
    assert host.look() == "connecting"
    assert not scene.talk.others


Altered = Callable[[list[bytes]], bytes]


def flip(place: int, bit: int = 0) -> Altered:
    def flipped(frames: list[bytes]) -> bytes:
        whole = bytearray(frames[0])
        whole[place] ^= 1 << bit
        return bytes(whole) + b"".join(frames[1:])

    return flipped


TAMPERINGS: dict[str, Altered] = {
    "flag of a part": flip(0),
    "flag of a long frame": flip(0, 1),
    "flag of a command": flip(0, 2),
    "flag of nothing": flip(0, 6),
    "size": flip(1),
    "size, by much": flip(1, 7),
    "command": flip(4),
    "sequence": flip(17),
    "sequence, by much": flip(10, 6),
    "authentication": flip(20),
    "what is said": flip(35),
    "the end": flip(-1, 7),
    "cut short": lambda frames: frames[0][:-1] + b"".join(frames[1:]),
    "shortened": lambda frames: frames[0][:1] + bytes([frames[0][1] - 1]) + frames[0][2:-1] + b"".join(frames[1:]),
    "longer": lambda frames: frames[0] + b"x" + b"".join(frames[1:]),
    "left out": lambda frames: b"".join(frames[1:]),
    "two left out": lambda frames: b"".join(frames[2:]),
    "repeated": lambda frames: frames[0] * 2 + b"".join(frames[1:]),
    "repeated later": lambda frames: b"".join([*frames, frames[0]]),
    "in another order": lambda frames: b"".join([frames[1], frames[0], *frames[2:]]),
    "made up": lambda frames: b"\x00\x2d\x07MESSAGE" + bytes(37) + b"".join(frames),
}


HARMLESS = ("flag of a part", "flag of nothing")
"""Alterations of bits that ZeroMQ ignores, so the connection may survive them."""


class Tampering:
    """Filter that holds back six consecutive frames, and then forwards altered bytes in their place."""

    def __init__(self, first: int, altered: Altered) -> None:
        self._frames: list[bytes] = []
        self._numbers = range(first, first + 6)
        self._altered = altered
        self.done = False

    def __call__(self, number: int, frame: bytes) -> bytes:
        if number not in self._numbers:
            return frame
        self._frames.append(frame)
        self.done = len(self._frames) == 6
        return self._altered(self._frames) if self.done else b""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("tampering", "direction", "first"),
    one_in(5, TAMPERINGS, ["to_driver", "to_host"], [7, 8, 9]),
)
def test_tampering_can_only_break_the_connection(scene: Scene, tampering: str, direction: str, first: int) -> None:
    between = Tampering(first, TAMPERINGS[tampering])
    way: dict[str, Any] = {direction: between}
    with Proxy(scene.address, **way) as proxy:
        # The silence is long, so that none of the six frames is a heartbeat: the loss of one has no effect.
        host = scene.host("beta", proxy.address, silence_s=100 * SILENCE_S)
        sent, back = [], []

        def say_more() -> bool:
            message = [b"%d" % len(sent), b"observations of %d" % len(sent)]
            if len(sent) < 1000 and host.send(message):
                sent.append(message)
            while (frames := host.receive()) is not None:
                back.append(as_bytes(frames))
            return host.look() == "lost"

        scene.talk.until(lambda: say_more() or (len(back) > 50 and tampering in HARMLESS))
        assert between.done
        arrived = [frames for name, frames in scene.talk.others if name == "beta"]
        assert arrived == sent[: len(arrived)]
        assert back == sent[: len(back)]
        if host.look() == "lost":
            # ZeroMQ closes an abandoned connection only when its socket is used again.
            scene.talk.until(lambda: say_more() and scene.listener.admission.ended > 0)
            scene.talk.until(lambda: scene.listener.admission.connections == 1)


@pytest.mark.parametrize("place", one_in(4, range(-64, 0, 3)))
def test_no_altered_greeting_disables_encryption(scene: Scene, place: int) -> None:
    def altered(number: int, frame: bytes) -> bytes:
        return bytes([frame[0] ^ 1]) if number == place else frame

    for way in ({"to_driver": altered}, {"to_host": altered}):
        with Proxy(scene.address, **way) as proxy:
            host = scene.host("beta", proxy.address)
            host.send([b"observations of beta"])
            scene.talk.until(lambda host=host: host.look() != "connecting" or host.link.broken_handshakes > 0)  # type: ignore[misc]
            for _ in range(3):
                scene.talk.turn()
            host.close()
            assert not any(b"observations of beta" in heard for heard in proxy.recorded)
    assert all(other == ("beta", [b"observations of beta"]) for other in scene.talk.others)


def test_numbered_messages_differ() -> None:
    assert len({tuple(as_bytes(numbered(number))) for number in range(300)}) == 300
