"""Hosts whose keys are right and who misbehave: what they say is checked, and nothing of it is ever unpickled."""

from __future__ import annotations

import logging
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from sampling import one_in
from worker_hosts import until

from parenv import AsyncWorkerPool, Stop, WorkerOptions
from parenv.memory.layout import COMMIT_DTYPE, RolloutSpec, slot_layout
from parenv.memory.spaces import describe, leaves
from parenv.memory.status_slot import code
from parenv.protocol.frames import HEADER_BYTES, Sender, from_frames, to_frames
from parenv.protocol.messages import Commit, Credit, Failure, Ready, Reply, SideData
from parenv.remote import exchange, placement
from parenv.remote.checks import decode
from parenv.remote.host_messages import (
    HOST,
    Chunks,
    Gone,
    Goodbye,
    Heartbeat,
    Join,
    Refuse,
    Signal,
    Stack,
    Start,
    Started,
    Welcome,
    own_versions,
)
from parenv.remote.net.curve import HostListener, HostSocket
from parenv.remote.net.host_keys import AllowList, read_driver_keys, read_host_keys
from parenv.supervision import watch
from parenv.testing import LedgerEnv, check_ledger
from parenv.transport.waiting import Waiting

pytestmark = pytest.mark.usefixtures("warnings_are_expected")
LATE_S = 120.0


def zeros(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


class FakeHost:
    """Speaks as a host does, and says whatever a test wants."""

    def __init__(self, hosts: Any, name: str = "host5") -> None:
        self._socket = HostSocket(hosts.address, read_host_keys(hosts.keys / f"{name}.key"))
        self._waiting = Waiting()
        self._waiting.watch(self._socket)
        self.heard: list[tuple[Sender, Any]] = []

    def join(self, **changed: Any) -> None:
        versions = own_versions()
        self.say(replace(Join(versions, "nowhere", 1, 1), **changed))

    def say(self, message: Any, about: tuple[int, int] = HOST) -> None:
        self.say_frames(to_frames(Sender(*about), message))

    def say_frames(self, frames: Any) -> None:
        self.until(lambda: self._socket.send(frames))

    def hear(self, kind: type, seconds: float = LATE_S) -> Any:
        """The next message of a kind."""
        found: list[Any] = []

        def heard() -> bool:
            while (frames := self._socket.receive()) is not None:
                self.heard.append(from_frames(frames))
                if isinstance(self.heard[-1][1], kind):
                    found.append(self.heard[-1])
                    return True
            return False

        self.until(heard, seconds)
        return found[0]

    def until(self, holds: Any, seconds: float = LATE_S) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline
            assert self._socket.look() in ("connecting", "connected")
            self._waiting.wait(0.05)

    def close(self) -> None:
        self._socket.close(0.0)


@pytest.fixture
def fake(hosts: Any) -> Iterator[FakeHost]:
    made = FakeHost(hosts)
    yield made
    made.close()


@contextmanager
def serving(hosts: Any) -> Iterator[AsyncWorkerPool]:
    """A pool with two workers on a host that behaves."""
    hosts.start(2)
    envs = [lambda env_id=env_id: LedgerEnv(env_id) for env_id in range(4)]
    with AsyncWorkerPool(envs, zeros, num_workers=2, rollout_length=8, placement=hosts.placement()) as pool:
        yield pool


def take(
    pool: AsyncWorkerPool, expected: dict[int, tuple[int, ...]], seconds: float = LATE_S, until: Any = None
) -> None:
    """Take rollouts until something holds, and some more."""
    more = 40
    for rollout in pool.rollouts(Stop(seconds=seconds)):
        check_ledger(rollout, expected)
        if until is None or until():
            more -= 1
            if not more:
                return
    raise AssertionError("it did not come to that in time")


def refused(pool: AsyncWorkerPool, reason: str) -> Any:
    return lambda: pool.statistics().refused_connections.get(reason, 0)


CANARY = "canary"


class _Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def frames_of(what: str, canary: bytes) -> Any:
    """Frames that no honest host sends."""
    chunk = to_frames(Sender(0, 0), Chunks(0, [[0, memoryview(b"x" * 64)]]))
    header = to_frames(Sender(*HOST), Goodbye())[0]
    return {
        "nothing": [b"x"],
        "garbage": [b"\x00" * 40, b"garbage"],
        "a pickle": [canary],
        "a pickle behind a header": [bytes(header[:HEADER_BYTES]) + canary],
        "another protocol": [bytes(chunk[0][:4]) + b"\x00\x63" + bytes(chunk[0][6:]), *chunk[1:]],
        "an unknown kind": [bytes(chunk[0][:6]) + b"\x00\xff" + bytes(chunk[0][8:]), *chunk[1:]],
    }[what]


def test_a_host_that_is_gone_before_it_is_welcomed_has_done_nothing_wrong(
    hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, lost = HostListener.send, []

    def lossy(self: HostListener, peer: bytes, frames: Any = (), **credit: Any) -> bool:
        if frames and isinstance(from_frames(frames)[1], Welcome):
            lost.append(peer)
            return False
        return send(self, peer, frames, **credit)

    with serving(hosts) as pool:
        expected: dict[int, tuple[int, ...]] = {}
        monkeypatch.setattr(HostListener, "send", lossy)
        fake = FakeHost(hosts)
        fake.join()
        take(pool, expected, until=lambda: lost)
        fake.close()
        assert pool.statistics().refused_connections == {}
        assert pool.statistics().hosts == 1


BAD = [
    "nothing",
    "garbage",
    "a pickle",
    "a pickle behind a header",
    "another protocol",
    "an unknown kind",
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("joined", [True, False], ids=["joined", "not joined"])
def test_what_cannot_be_read_is_refused_and_the_others_go_on(hosts: Any, tmp_path: Path, joined: bool) -> None:
    with serving(hosts) as pool:
        expected: dict[int, tuple[int, ...]] = {}
        canary = pickle.dumps(_Canary(tmp_path / CANARY))
        for what in BAD:
            fake = FakeHost(hosts, f"host{1 + BAD.index(what) % 5}")  # One key may not offend too often.
            if joined:
                fake.join()
                take(pool, expected, until=lambda: pool.statistics().hosts == 2)
                fake.hear(Welcome)
            count = refused(pool, "malformed message")()
            fake.say_frames(frames_of(what, canary))
            take(pool, expected, until=lambda count=count: refused(pool, "malformed message")() == count + 1)
            take(pool, expected, until=lambda: pool.statistics().hosts == 1)
            fake.hear(Refuse)
            fake.close()
        assert not (tmp_path / CANARY).exists()
        assert pool.statistics().worker_restarts == 0
        assert len(expected) == 4


def test_one_that_has_not_joined_is_not_heard(hosts: Any, fake: FakeHost) -> None:
    with serving(hosts) as pool:
        expected: dict[int, tuple[int, ...]] = {}
        fake.say(Started(1), (0, 0))
        fake.say(Failure(-1, 0, -1, "step", ["builtins", "ValueError"], "not from me", ""), (0, 0))
        fake.say(Goodbye())
        take(pool, expected, until=lambda: refused(pool, "has not joined")() == 3)
        assert pool.statistics().worker_restarts == 0


@pytest.mark.more
def test_a_host_speaks_for_its_own_workers_only(hosts: Any, fake: FakeHost) -> None:
    with serving(hosts) as pool:
        expected: dict[int, tuple[int, ...]] = {}
        fake.join()
        take(pool, expected, until=lambda: pool.statistics().hosts == 2)
        for message in (
            Failure(-1, 0, -1, "step", ["builtins", "ValueError"], "not from me", ""),
            Gone(1, 0, None, ""),
            Commit(0, {}, None, []),
            Chunks(0, [[0, memoryview(b"\xff" * 512)]]),
            Started(1),
            Ready([describe(spaces.Discrete(2))] * 2, 2, [], []),
            Reply(1, pickle.dumps(_Canary(Path("never")))),
        ):
            fake.say(message, (0, 0))
            fake.say(message, (1, 0))
        fake.say(Heartbeat([0, 1], b"\xff" * 64))
        take(pool, expected, until=lambda: refused(pool, "old generation")() == 14)
        statistics = pool.statistics()
        assert (statistics.hosts, statistics.worker_restarts) == (2, 0)
        assert pool._session.workers.doing(0) != "something that overwrote shared memory"


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "changed",
    [{"versions": own_versions() | {"python": "2.7"}}, {"versions": own_versions() | {"cloudpickle": "0.1"}},
     {"versions": own_versions() | {"parenv": "9.9"}}, {"versions": None}, {"capacity": 0},
     {"versions": own_versions() | {"protocol": np.arange(3)}}],
    ids=["python", "cloudpickle", "parenv", "none", "no room", "no text"],
)  # fmt: skip
def test_a_host_that_does_not_fit_is_told_why_and_gets_no_job(
    hosts: Any, fake: FakeHost, changed: dict[str, Any]
) -> None:
    with serving(hosts) as pool:
        fake.join(**changed)
        expected: dict[int, tuple[int, ...]] = {}
        take(pool, expected, until=lambda: refused(pool, "version")() == 1)
        _, refusal = fake.hear(Refuse)
        versions = changed.get("versions") or {}
        for name, version in versions.items():
            if type(version) is not str or version != own_versions()[name]:
                there = version if type(version) is str else "unknown"
                assert refusal.reason == f"{name} is {there} there and {own_versions()[name]} here"
        assert not [message for _, message in fake.heard if isinstance(message, Welcome)]
        assert pool.statistics().hosts == 1


@contextmanager
def driven(
    hosts: Any, raised: list[BaseException] | None = None, num_workers: int = 1, **limits: Any
) -> Iterator[list[Any]]:
    """A pool in another thread, until it has 80 env steps; afterwards its rollouts and statistics."""
    seen: list[Any] = []

    def drive() -> None:
        try:
            drive_until_done()
        except Exception as error:
            if raised is None:
                raise
            raised.append(error)

    def drive_until_done() -> None:
        options = WorkerOptions(start_timeout_s=LATE_S, **limits)
        envs = [lambda env_id=env_id: LedgerEnv(env_id) for env_id in range(num_workers)]
        placement = hosts.placement(silence_s=2.5)
        with AsyncWorkerPool(
            envs, zeros, num_workers=num_workers, rollout_length=8, workers=options, placement=placement
        ) as pool:
            seen.extend(rollout.copy() for rollout in pool.rollouts(Stop(env_steps=80, seconds=LATE_S)))
            seen.append(pool.statistics())

    driver = threading.Thread(target=drive)
    driver.start()
    try:
        yield seen
    finally:
        driver.join(LATE_S)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "what",
    one_in(4, ["no credit", "does not fit", "twice", "incomplete", "of an old generation", "ends", "too many ends"]),
)
def test_a_rollout_that_is_none_ends_its_host_and_is_never_seen(hosts: Any, fake: FakeHost, what: str) -> None:
    """The fake host has the only worker, says what an honest one would, and then something else."""
    space = describe(LedgerEnv(0).observation_space), describe(LedgerEnv(0).action_space)
    with driven(hosts) as seen:
        fake.join()
        worker, _ = fake.hear(Start)
        assert worker == Sender(0, 0)
        fake.say(Started(1), worker)
        fake.say(Ready(list(space), 1, [], []), worker)
        _, credit = fake.hear(Credit)
        assert credit.sequence == 0
        lies = {
            "no credit": [(Chunks(17, [[0, memoryview(b"\xff" * 64)]]), worker)],
            "does not fit": [(Chunks(0, [[1 << 30, memoryview(b"\xff" * 64)]]), worker)],
            "twice": [(Commit(0, {}, None, []), worker)],
            "incomplete": [(Chunks(0, [[0, memoryview(b"\0" * 64)]]), worker), (Commit(0, {}, None, []), worker)],
            "of an old generation": [(Commit(0, {}, None, []), Sender(0, 7))],
            "ends": [(Chunks(0, [[0, memoryview(b"\xff" * 4096)]]), worker), (Commit(0, {}, None, []), worker)],
            "too many ends": [
                (Chunks(0, [[0, memoryview(b"\x7f" * 4096)]]), worker),
                (Commit(0, {}, None, []), worker),
            ],
        }
        for message, about in lies[what]:
            fake.say(message, about)
        if what == "of an old generation":
            fake.say(Goodbye())
        else:
            fake.hear(Refuse)
        hosts.start(1)
    *rollouts, statistics = seen
    expected: dict[int, tuple[int, ...]] = {}
    assert sum(check_ledger(rollout, expected) for rollout in rollouts) == 80
    assert statistics.worker_restarts == 1
    reason = "old generation" if what == "of an old generation" else "malformed message"
    assert statistics.refused_connections == {reason: 1}


def frames_of_a_rollout(sequence: int, T: int = 8) -> list[Any]:
    """Chunks and the beginning of a commit, as an honest host would send them."""
    env = LedgerEnv(0)
    spec = RolloutSpec(T, leaves(env.observation_space), leaves(env.action_space))
    layout = slot_layout(spec, 1, 1)
    slot = np.zeros(layout.reserved_bytes, np.uint8)
    (commits,) = (field for field in layout.fields if field.name == ("commits", 0))
    np.ndarray(1, COMMIT_DTYPE, slot, commits.offset)["sequence"] = sequence
    return [Chunks(sequence, [[0, memoryview(slot)]])]


OBJECT = ["value", [], "|O", False]
FORMS: dict[str, Any] = {
    "extras: pointers": lambda ready: replace(ready, extras=[OBJECT]),
    "extras: a structure": lambda ready: replace(ready, extras=[["value", [], "i4,O", False]]),
    "extras: twice": lambda ready: replace(ready, extras=[["value", [], "<f4", False]] * 2),
    "extras: no text": lambda ready: replace(ready, extras=[[1, [], "<f4", False]]),
    "extras: negative": lambda ready: replace(ready, extras=[["value", [-8], "<f4", False]]),
    "extras: huge": lambda ready: replace(ready, extras=[["value", [1 << 40, 1 << 40], "<f4", False]]),
    "extras: a number": lambda ready: replace(ready, extras=7),
    "carry: pointers": lambda ready: replace(ready, carry=[[[], [], "|O"]]),
    "carry: two at one place": lambda ready: replace(ready, carry=[[[], [], "<f4"], [["a"], [], "<f4"]]),
    "carry: too deep": lambda ready: replace(ready, carry=[[["deeper"] * 2000, [], "<f4"]]),
    "spaces: a number": lambda ready: replace(ready, spaces=5),
    "spaces: one": lambda ready: replace(ready, spaces=ready.spaces[:1]),
    "spaces: nonsense": lambda ready: replace(ready, spaces=["box", "box"]),
    "nobody": lambda ready: replace(ready, num_envs=0),
    "report": lambda commit: replace(commit, report=5),
    "report that nobody asked for": lambda commit: replace(commit, report=[8, {}, None]),
    "replaced: a number": lambda commit: replace(commit, replaced=3),
    "replaced: numbers": lambda commit: replace(commit, replaced=[[1, 2, 3]]),
    "objects: a number": lambda commit: replace(commit, objects=1),
    "kind: a number": lambda failure: replace(failure, kind=5),
    "kind: one text": lambda failure: replace(failure, kind=["ValueError"]),
    "kind: numbers": lambda failure: replace(failure, kind=[1, 2]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("error", [ZeroDivisionError, RecursionError, MemoryError])
def test_whatever_happens_while_a_message_is_checked_is_the_offence_of_its_host(
    hosts: Any, fake: FakeHost, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(message: Any, *others: Any) -> None:
        if message.num_envs == 666:
            raise error

    monkeypatch.setattr(exchange, "check_ready", check)
    with driven(hosts) as seen:
        fake.join()
        worker, _ = fake.hear(Start)
        fake.say(Ready([0, 0], 666, [], []), worker)
        _, refusal = fake.hear(Refuse)
        assert error.__name__ in refusal.reason
        hosts.start(1)
    *rollouts, statistics = seen
    assert len(rollouts) == 10
    assert statistics.refused_connections == {"malformed message": 1}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("what", ["ready twice", "side data", "the second rollout first", "too much"])
def test_what_may_not_be_said_now_ends_its_host_and_not_the_run(hosts: Any, fake: FakeHost, what: str) -> None:
    space = describe(LedgerEnv(0).observation_space), describe(LedgerEnv(0).action_space)
    ready = Ready(list(space), 1, [], [])
    with driven(hosts) as seen:
        fake.join()
        worker, _ = fake.hear(Start)
        fake.say(ready, worker)
        for _ in range(2):
            _, credit = fake.hear(Credit)
        assert credit.sequence == 1
        said = {
            "ready twice": [ready],
            "side data": [SideData([], [], [])],
            "too much": [Reply(99, "x" * 5_000_000)],
            "the second rollout first": [*frames_of_a_rollout(1), Commit(1, {}, None, [])],
        }
        for message in said[what]:
            fake.say(message, worker)
        fake.hear(Refuse)
        hosts.start(1)
    *rollouts, statistics = seen
    assert len(rollouts) == 10
    assert statistics.refused_connections == {"malformed message": 1}


@pytest.mark.more
def test_a_host_that_does_not_kill_its_worker_is_expelled_and_the_run_goes_on(
    hosts: Any, fake: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = describe(LedgerEnv(0).observation_space), describe(LedgerEnv(0).action_space)
    monkeypatch.setattr(watch, "KILL_TIMEOUT_S", 0.5)
    with driven(hosts, step_timeout_s=5.0) as seen:
        fake.join()
        worker, _ = fake.hear(Start)
        fake.say(Ready(list(space), 1, [], []), worker)
        fake.hear(Credit)
        fake.say(Heartbeat([0], np.array([code("step", 0), 0, 0, 1], "<i8").tobytes()))
        fake.hear(Signal)
        fake.say(Stack("none"), worker)
        assert fake.hear(Signal)[1].signum == signal.SIGKILL
        assert fake.hear(Refuse)[1].reason == "the driver ends this host: it did not kill worker 0"
        hosts.start(1)
    *rollouts, statistics = seen
    assert len(rollouts) == 10
    assert statistics.worker_restarts == 1
    assert statistics.refused_connections == {"misbehaved": 1}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("wrong", [{"num_envs": 5}, {"spaces": [describe(spaces.Discrete(3))] * 2}], ids=str)
def test_a_host_that_has_other_sub_environments_than_most_is_expelled_and_the_run_begins(
    hosts: Any, fake: FakeHost, wrong: dict[str, Any]
) -> None:
    space = describe(LedgerEnv(0).observation_space), describe(LedgerEnv(0).action_space)
    with driven(hosts, num_workers=3) as seen:
        fake.join()
        worker, _ = fake.hear(Start)
        hosts.start(3)
        fake.say(replace(Ready(list(space), 1, [], []), **wrong), worker)
        _, refusal = fake.hear(Refuse)
        assert refusal.reason.startswith("the driver ends this host: its sub-environments have other spaces, or")
    *rollouts, statistics = seen
    assert {int(rollout.worker) for rollout in rollouts} <= {0, 1, 2}
    assert statistics.refused_connections == {"misbehaved": 1}


@pytest.mark.more
def test_a_host_on_which_a_restarted_worker_has_other_spaces_is_expelled_and_the_run_goes_on(
    hosts: Any, fake: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    space = describe(LedgerEnv(0).observation_space), describe(LedgerEnv(0).action_space)
    other = FakeHost(hosts, "host4")
    with caplog.at_level(logging.INFO, logger="parenv"), driven(hosts) as seen:
        fake.join()
        worker, _ = fake.hear(Start)
        fake.say(Ready(list(space), 1, [], []), worker)
        fake.hear(Credit)
        hosts.start(2)
        until(lambda: "host 'host0'" in caplog.text)
        other.join(capacity=5)
        other.hear(Welcome)
        fake.close()
        worker, _ = other.hear(Start)
        other.say(Ready([space[1], space[1]], 1, [], []), worker)
        _, refusal = other.hear(Refuse)
        assert refusal.reason == "the driver ends this host: worker 0 has other spaces there than before"
    other.close()
    *rollouts, statistics = seen
    assert len(rollouts) == 10
    assert statistics.worker_restarts == 2
    assert statistics.refused_connections == {"misbehaved": 1}


ESCAPE = "\x1b]0;pwned\x07"


@pytest.mark.more
def test_no_text_of_a_host_moves_a_terminal(hosts: Any, fake: FakeHost, caplog: pytest.LogCaptureFixture) -> None:
    space = describe(LedgerEnv(0).observation_space), describe(LedgerEnv(0).action_space)
    raised: list[BaseException] = []
    with caplog.at_level(logging.INFO, logger="parenv"), driven(hosts, raised):
        fake.join(name=ESCAPE)
        worker, _ = fake.hear(Start)
        fake.say(Ready(list(space), 1, [], []), worker)
        fake.hear(Credit)
        commit = Commit(0, {}, None, [[0, ESCAPE, ESCAPE]])
        for message in [*frames_of_a_rollout(0), commit]:
            fake.say(message, worker)
        fake.say(Failure(-1, 0, 0, ESCAPE, ["builtins", f"Value{ESCAPE}"], ESCAPE, ESCAPE, {"a": ESCAPE}), worker)
    shown = "".join(traceback.format_exception(raised[0])) + caplog.text
    assert shown.count("\\x1b]0;pwned\\x07") >= 4
    assert "\x1b" not in shown


@pytest.mark.one_in(14)
@pytest.mark.parametrize("what", FORMS)
def test_where_messages_leave_their_form_open_it_is_checked(hosts: Any, fake: FakeHost, what: str) -> None:
    """The fake host has the only worker, says what an honest one would, but for one thing."""
    space = describe(LedgerEnv(0).observation_space), describe(LedgerEnv(0).action_space)
    ready = Ready(list(space), 1, [], [])
    with driven(hosts) as seen:
        fake.join()
        worker, _ = fake.hear(Start)
        fake.say(Started(1), worker)
        of_ready = what.partition(":")[0] in ("extras", "carry", "spaces", "nobody")
        fake.say(FORMS[what](ready) if of_ready else ready, worker)
        if not of_ready:
            fake.hear(Credit)
            failure = Failure(-1, 0, -1, "step", ["builtins", "ValueError"], "an error", "")
            is_failure = what.startswith("kind")
            for message in [] if is_failure else frames_of_a_rollout(0):
                fake.say(message, worker)
            fake.say(FORMS[what](failure if is_failure else Commit(0, {}, None, [])), worker)
        fake.hear(Refuse)
        hosts.start(1)
    *rollouts, statistics = seen
    expected: dict[int, tuple[int, ...]] = {}
    assert sum(check_ledger(rollout, expected) for rollout in rollouts) == 80
    assert statistics.refused_connections == {"malformed message": 1}


@pytest.mark.more
def test_a_key_that_sends_what_it_may_not_again_and_again_joins_no_more(
    hosts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    expected: dict[int, tuple[int, ...]] = {}
    with serving(hosts) as pool, caplog.at_level(logging.WARNING, logger="parenv"):
        for count in range(1, 4):
            fake = FakeHost(hosts)
            fake.join()
            take(pool, expected, until=lambda: pool.statistics().hosts == 2)
            fake.say_frames([b"garbage"])
            take(pool, expected, until=lambda count=count: refused(pool, "malformed message")() == count)
            fake.close()
        fake = FakeHost(hosts)
        fake.join()
        take(pool, expected, until=lambda: refused(pool, "barred")() == 1)
        _, refusal = fake.hear(Refuse)
        assert "3 times" in refusal.reason
        fake.close()
        assert pool.statistics().hosts == 1
        assert caplog.text.count("host host5 sent what it may not") == 1


@pytest.mark.more
def test_the_connection_of_an_offender_ends_and_nothing_more_of_it_is_read(
    hosts: Any, fake: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []

    def noted(frames: Any, limit: int) -> Any:
        read.append(bytes(frames[0][:4]))
        return decode(frames, limit)

    with serving(hosts) as pool:
        expected: dict[int, tuple[int, ...]] = {}
        fake.join()
        take(pool, expected, until=lambda: pool.statistics().hosts == 2)
        monkeypatch.setattr(placement, "decode", noted)
        for _ in range(5):
            fake.say_frames([b"\x00" * 40])
        take(pool, expected, until=lambda: fake._socket.look() == "lost")
        assert read.count(bytes(4)) == 1
        assert pool.statistics().refused_connections == {"malformed message": 1}
        assert (pool.statistics().hosts, pool.statistics().worker_restarts) == (1, 0)


@pytest.mark.more
def test_a_message_by_a_barred_key_is_refused_unread_on_a_connection_that_had_joined_too(
    hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(hosts) as pool:
        expected: dict[int, tuple[int, ...]] = {}
        joined = FakeHost(hosts)
        joined.join()
        take(pool, expected, until=lambda: pool.statistics().hosts == 2)
        for count in range(1, 4):
            offender = FakeHost(hosts)
            offender.say_frames([b"garbage"])
            take(pool, expected, until=lambda count=count: refused(pool, "malformed message")() == count)
            offender.close()
        joined.say_frames([b"garbage"])
        take(pool, expected, until=lambda: refused(pool, "barred")() == 1)
        joined.hear(Refuse)
        joined.close()
        assert pool.statistics().refused_connections == {"malformed message": 3, "barred": 1}
        assert pool.statistics().hosts == 1


def test_a_host_ends_in_order_at_a_driver_of_another_protocol(hosts: Any) -> None:
    allowed = AllowList(hosts.keys / "hosts.pub")
    keys = read_driver_keys(hosts.keys / "driver.key")
    listener = HostListener(hosts.address, keys, allowed, max_message_bytes=1 << 20)
    try:
        (process,) = hosts.start(1)
        deadline = time.monotonic() + LATE_S
        while (heard := listener.receive()) is None:
            assert time.monotonic() < deadline
            listener.wait(0.05)
        head, *more = to_frames(Sender(*HOST), Refuse("of another version"))
        assert listener.send(heard[0], [bytes(head[:4]) + b"\x00\x63" + bytes(head[6:]), *more])
        assert process.wait(LATE_S) == 2
        said = process.stderr.read()
        assert "speaks otherwise" in said
        assert "Traceback" not in said
    finally:
        listener.close()


def test_refusals_are_logged_without_keys(hosts: Any, fake: FakeHost, caplog: pytest.LogCaptureFixture) -> None:
    with serving(hosts) as pool:
        keys = read_host_keys(hosts.keys / "host5.key")
        with caplog.at_level(logging.DEBUG, logger="parenv"):
            fake.say_frames([b"garbage"])
            take(pool, {}, until=lambda: refused(pool, "malformed message")() == 1)
        assert "host5 sent what it may not" in caplog.text
        for key in (keys.public, keys.secret, keys.driver_public):
            assert key.decode() not in caplog.text
