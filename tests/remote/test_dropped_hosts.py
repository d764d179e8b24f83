"""Check that runs continue without a host that cannot join, breaks the protocol or does not do its work."""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from audits import until
from envs import ledgers
from fake_driver import (
    BAD,
    COMMIT,
    FAILURE,
    GOOD,
    KINDS_AT,
    READY,
    REWARDS_AT,
    SHARE,
    WORKER,
    Run,
    frames,
    kinds,
    part,
    versions,
    whole_rollout,
    with_bytes,
)
from fake_hosts import LATE_S, FakeHost, Misbehaviour, SteppingHost
from gymnasium import spaces
from inside import workers_of
from policies import zeros

from parenv import AsyncWorkerPool, ParallelVectorEnv, Stop, WorkerOptions, WorkerTimeoutError
from parenv.crew import watch
from parenv.errors import HostLostError, ProtocolError
from parenv.hosts import RemotePlacement
from parenv.memory.spaces import describe
from parenv.memory.status_slot import code
from parenv.placement.base import Ended, Received
from parenv.protocol.frames import HEADER_BYTES, Sender, from_frames, to_frames
from parenv.protocol.messages import Credit, Logged, Reply
from parenv.remote import placement
from parenv.remote.host_messages import (
    HOST,
    Answers,
    Gone,
    Goodbye,
    Heartbeat,
    Refuse,
    Signal,
    Stack,
    Start,
    Started,
    Welcome,
)
from parenv.remote.net.curve import HostListener
from parenv.remote.net.host_keys import AllowList, read_driver_keys, read_host_keys
from parenv.testing import check_ledger

pytestmark = pytest.mark.usefixtures("warnings_are_expected")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    # set_level() would be undone after the level of the other fixture, and so set that one for all later tests.
    with caplog.at_level(logging.WARNING, logger="parenv"):
        yield caplog


UNREADABLE = {
    "nothing": "shorter than its header",
    "garbage": "does not begin with parenv's magic number",
    "a pickle": "does not begin with parenv's magic number",
    "a pickle behind a header": "malformed data in a message",
    "another protocol": "has protocol version 99, but this process uses",
    "an unknown kind": "unknown kind of message: 255",
}
IN_A_POOL: dict[str, tuple[list[Any], str]] = {
    **{what: ([frames(what)], why) for what, why in UNREADABLE.items()},
    "no credit": ([part(b"\xff", 64, sequence=17)], "worker 1 has no credit 17"),
    "a piece that does not fit": ([part(b"\xff", 64, offset=1 << 30)], "within its slot, got 64 bytes at offset"),
    "a rollout twice": ([whole_rollout(0), COMMIT, COMMIT], "worker 1 has no credit 0"),
    "an incomplete rollout": ([part(b"\0", 64), COMMIT], "the rollout of credit 0 .* bytes, got 64"),
    "too many ends": ([part(b"\x7f", 512), COMMIT], "the rollout of credit 0 .* bytes, got"),
    "a field without its form": ([replace(FAILURE, kind=[1, 2])], "Failure.kind must be str, got int"),
    "log records": ([Logged([], 0)], "a host must not send log records"),
    "a heartbeat of no slots": ([Heartbeat([1], b"")], "a heartbeat must have a status slot"),
}
IN_A_VECTOR_ENV: dict[str, tuple[Callable[[Answers], Answers], str]] = {
    "a row that is not there": (lambda good: replace(good, rows=[0, SHARE]), "rows must be numbers from 0 to 1"),
    "a row before the first": (lambda good: replace(good, rows=[-1, 0]), "rows must be numbers from 0 to 1"),
    "a byte too few": (lambda good: replace(good, data=good.data[:-1]), "ValueError: cannot reshape"),
    "a byte too many": (lambda good: with_bytes(good, 0, b"", b"x"), "ValueError: cannot reshape"),
    "an info that is left out": (lambda good: with_bytes(good, KINDS_AT, kinds(2, 0)), "ValueError: cannot reshape"),
}


def is_dropped(run: Run, why: str, log: pytest.LogCaptureFixture) -> None:
    """Check that the bad host was dropped once, with its worker, and that the good host stays."""
    assert run.refused == {"dropped": 1}
    (logged,) = (text for text in log.messages if "Further ones like it are only counted" in text)
    assert re.search(rf"host host5 is dropped: it sent a message that is not allowed: .*{why}", logged)
    assert run.listener.ended == [BAD]
    (refusal,) = run.told(Refuse)
    assert re.search(why, refusal.reason)
    ended = run.events[-1]
    assert isinstance(ended, Ended)
    assert (ended.sender, ended.signal) == (WORKER, None)
    assert re.search(
        rf"host 'host5' \(.*, pid 1\) is gone: it sent a message that is not allowed: .*{why}", ended.lost_host
    )
    run.hear(Heartbeat([], b""), host=GOOD)
    assert run.refused == {"dropped": 1}


@pytest.mark.parametrize("what", IN_A_POOL)
def test_a_host_of_a_pool_that_breaks_the_protocol_is_dropped(what: str, log: pytest.LogCaptureFixture) -> None:
    messages, why = IN_A_POOL[what]
    with Run().reach("credits") as run:
        for message in messages:
            run.hear(message, WORKER)
        is_dropped(run, why, log)


@pytest.mark.parametrize("what", IN_A_VECTOR_ENV)
def test_a_host_of_a_vector_env_that_breaks_the_protocol_is_dropped(what: str, log: pytest.LogCaptureFixture) -> None:
    change, why = IN_A_VECTOR_ENV[what]
    with Run(steps=True).reach("asked") as run:
        before = run.step_buffer.rewards.copy()
        run.hear(change(run.answers()), WORKER)
        is_dropped(run, why, log)
        assert (run.step_buffer.rewards == before).all()


@pytest.mark.parametrize("error", [ZeroDivisionError, RecursionError, MemoryError])
def test_a_host_whose_message_raises_any_exception_is_dropped(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(*message: Any) -> None:
        raise error

    with Run().reach("started") as run:
        monkeypatch.setattr(run.placement._exchange, "take", take)
        run.hear(READY, WORKER)
        (refusal,) = run.told(Refuse)
        assert error.__name__ in refusal.reason
        assert (run.refused, run.listener.ended) == ({"dropped": 1}, [BAD])


def test_every_message_that_is_not_refused_is_passed_on() -> None:
    with Run().reach("credits") as run:
        run.events.clear()
        run.hear(whole_rollout(0), WORKER)
        run.hear(COMMIT, WORKER)
        assert run.events == [Received(WORKER, COMMIT)]
    with Run(steps=True).reach("asked") as run:
        run.hear(run.answers(), WORKER)
        assert run.step_buffer.rewards.tolist() == [0.0, 0.0, 666.0, 666.0]
        assert run.refused == {}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (versions(python="2.7"), "the host has python 2.7, and the driver has"),
        (versions(cloudpickle="0.1"), "the host has cloudpickle 0.1, and"),
        (versions(parenv="9.9"), "the host has parenv 9.9, and"),
        ({}, "the host has protocol unknown, and"),
    ],
    ids=str,
)
def test_an_incompatible_host_is_refused_with_a_reason(changed: Any, why: str, log: pytest.LogCaptureFixture) -> None:
    with Run() as run:
        run.join(versions=changed)
        (refusal,) = run.told(Refuse)
        assert refusal.reason.startswith(why)
        assert f"host host5 is dropped: {why}" in log.text
        assert not run.told(Welcome)
        assert (run.refused, len(run.placement._hosts)) == ({"dropped": 1}, 0)


@pytest.mark.parametrize(("stage", "about"), [("", WORKER), ("credits", (0, 0)), ("credits", (1, 7))], ids=str)
def test_messages_that_come_too_late_are_ignored(stage: str, about: tuple[int, int]) -> None:
    # A host that was lost may have left messages, and a worker that was replaced too.
    with Run().reach(stage) as run:
        run.events.clear()
        before = run.written
        for message in (FAILURE, Gone(1, 0, None, ""), COMMIT, part(b"\xff", 512), Started(1), READY, Reply(1, b"")):
            run.hear(message, about)
        assert (run.events, run.written, run.refused, run.told(Refuse)) == ([], before, {}, [])


def test_a_heartbeat_is_about_workers_of_its_own_host_only() -> None:
    with Run().reach("credits") as run:
        before = run.written
        run.hear(Heartbeat([0, 7, -1], b"\xff" * 96))
        assert run.written == before
        run.hear(Heartbeat([0, 1], b"\xff" * 64))
        # The status slot of worker 1, and the two flags that make the main process read the status slots.
        assert sum(one != other for one, other in zip(run.written, before, strict=True)) == 32 + 2


@pytest.fixture
def fake(hosts: Any) -> Iterator[FakeHost]:
    made = FakeHost(hosts)
    yield made
    made.close()


@contextmanager
def serving(hosts: Any) -> Iterator[AsyncWorkerPool]:
    """Start a pool with two workers on an honest host."""
    hosts.start(2)
    envs = ledgers(4)
    with AsyncWorkerPool(envs, zeros, num_workers=2, rollout_length=8, placement=hosts.placement()) as pool:
        yield pool


def take(
    pool: AsyncWorkerPool, expected: dict[int, tuple[int, ...]], seconds: float = LATE_S, until: Any = None
) -> None:
    """Take rollouts until a condition has held after 40 of them."""
    more = 40
    for rollout in pool.rollouts(Stop(seconds=seconds)):
        check_ledger(rollout, expected)
        if until is None or until():
            more -= 1
            if not more:
                return
    raise AssertionError("the condition did not hold in time")


def refused(pool: AsyncWorkerPool, reason: str) -> Any:
    return lambda: pool.statistics().refused_connections.get(reason, 0)


@contextmanager
def driven(
    hosts: Any, raised: list[BaseException] | None = None, num_workers: int = 1, **limits: Any
) -> Iterator[list[Any]]:
    """Run a pool in another thread for 80 env steps; yield a list that gets its rollouts and then its statistics."""
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
        envs = ledgers(num_workers)
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


@pytest.mark.more
def test_a_host_that_disconnects_during_the_handshake_has_not_offended(
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


class _Canary:
    """Object that creates a file if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled_and_other_hosts_continue(hosts: Any, tmp_path: Path) -> None:
    with serving(hosts) as pool:
        expected: dict[int, tuple[int, ...]] = {}
        canary = pickle.dumps(_Canary(tmp_path / "canary"))
        header = bytes(to_frames(Sender(*HOST), Goodbye())[0][:HEADER_BYTES])
        for count, said in enumerate(([canary], [header + canary], [header + b"[]", canary]), 1):
            fake = FakeHost(hosts, f"host{count}")
            fake.join()
            take(pool, expected, until=lambda: pool.statistics().hosts == 2)
            fake.hear(Welcome)
            fake.say(said)
            take(pool, expected, until=lambda count=count: refused(pool, "dropped")() == count)
            take(pool, expected, until=lambda: pool.statistics().hosts == 1)
            fake.hear(Refuse)
            fake.close()
        assert not (tmp_path / "canary").exists()
        assert pool.statistics().worker_restarts == 0
        assert len(expected) == 4


@pytest.mark.more
def test_a_host_that_does_not_kill_its_worker_is_expelled_and_the_run_continues(
    hosts: Any, fake: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "KILL_TIMEOUT_S", 0.5)
    with driven(hosts, step_timeout_s=5.0) as seen:
        fake.join()
        worker, _ = fake.hear(Start)
        fake.say(READY, worker)
        fake.hear(Credit)
        fake.say(Heartbeat([0], np.array([code("step", 0), 0, 0, 1], "<i8").tobytes()))
        fake.hear(Signal)
        fake.say(Stack("none"), worker)
        assert fake.hear(Signal)[1].signum == signal.SIGKILL
        assert fake.hear(Refuse)[1].reason == "it did not kill worker 0"
        hosts.start(1)
    *rollouts, statistics = seen
    assert len(rollouts) == 10
    assert statistics.worker_restarts == 1
    assert statistics.refused_connections == {"dropped": 1}


@pytest.mark.more
@pytest.mark.parametrize("wrong", [{"num_envs": 5}, {"spaces": [describe(spaces.Discrete(3))] * 2}], ids=str)
def test_a_host_that_has_other_sub_environments_than_most_is_expelled_and_the_run_begins(
    hosts: Any, fake: FakeHost, wrong: dict[str, Any]
) -> None:
    with driven(hosts, num_workers=3) as seen:
        fake.join()
        worker, _ = fake.hear(Start)
        hosts.start(3)
        fake.say(replace(READY, **wrong), worker)
        _, refusal = fake.hear(Refuse)
        assert refusal.reason.startswith("its sub-environments differ in spaces or")
    *rollouts, statistics = seen
    assert {int(rollout.worker) for rollout in rollouts} <= {0, 1, 2}
    assert statistics.refused_connections == {"dropped": 1}


@pytest.mark.more
def test_a_host_on_which_a_restarted_worker_has_other_spaces_is_expelled_and_the_run_continues(
    hosts: Any, fake: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    other = FakeHost(hosts, "host4")
    with caplog.at_level(logging.INFO, logger="parenv"), driven(hosts) as seen:
        fake.join()
        worker, _ = fake.hear(Start)
        fake.say(READY, worker)
        fake.hear(Credit)
        hosts.start(2)
        until(lambda: "host 'host0'" in caplog.text)
        other.join(capacity=5)
        other.hear(Welcome)
        fake.close()
        worker, _ = other.hear(Start)
        other.say(replace(READY, spaces=[READY.spaces[1]] * 2), worker)
        _, refusal = other.hear(Refuse)
        assert refusal.reason == "worker 0 has other spaces there than before"
    other.close()
    *rollouts, statistics = seen
    assert len(rollouts) == 10
    assert statistics.worker_restarts == 2
    assert statistics.refused_connections == {"dropped": 1}


@pytest.mark.more
def test_the_connection_of_a_dropped_host_ends_and_nothing_more_of_it_is_read(
    hosts: Any, fake: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []

    def noted(frames: Any, of_host: bool) -> Any:
        read.append(bytes(frames[0][:4]))
        return from_frames(frames, of_host)

    with serving(hosts) as pool:
        expected: dict[int, tuple[int, ...]] = {}
        fake.join()
        take(pool, expected, until=lambda: pool.statistics().hosts == 2)
        monkeypatch.setattr(placement, "from_frames", noted)
        for _ in range(5):
            fake.say([b"\x00" * 40])
        take(pool, expected, until=lambda: fake.is_lost)
        assert read.count(bytes(4)) == 1
        assert pool.statistics().refused_connections == {"dropped": 1}
        assert (pool.statistics().hosts, pool.statistics().worker_restarts) == (1, 0)


def test_a_host_exits_cleanly_when_its_driver_has_another_protocol_version(hosts: Any) -> None:
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
        assert "has sent a malformed message" in said
        assert "Traceback" not in said
    finally:
        listener.close()


@pytest.mark.more
def test_refusals_are_logged_without_keys(hosts: Any, fake: FakeHost, caplog: pytest.LogCaptureFixture) -> None:
    with serving(hosts) as pool:
        keys = read_host_keys(hosts.keys / "host5.key")
        with caplog.at_level(logging.DEBUG, logger="parenv"):
            fake.say(frames("garbage"))
            take(pool, {}, until=lambda: refused(pool, "dropped")() == 1)
        assert "host5 is dropped: it sent a message that is not allowed" in caplog.text
        for key in (keys.public, keys.secret, keys.driver_public):
            assert key.decode() not in caplog.text


@pytest.fixture
def stepping(hosts: Any) -> Iterator[Callable[..., None]]:
    made: list[SteppingHost] = []

    def make(capacity: int, misbehave: Misbehaviour | None = None) -> None:
        made.append(SteppingHost(hosts, hosts.names[len(made)], capacity, misbehave))

    try:
        yield make
    finally:
        while made:
            made.pop().end()


def make_envs(hosts: Any, num_workers: int, **more: Any) -> ParallelVectorEnv:
    return ParallelVectorEnv(
        [lambda: None] * (SHARE * num_workers),  # type: ignore[list-item,return-value]
        num_workers=num_workers,
        placement=hosts.placement(),
        **more,
    )


def refused_by(envs: ParallelVectorEnv) -> Any:
    return workers_of(envs).placement.traffic().refused


def answered(envs: ParallelVectorEnv) -> list[bytes]:
    """Return the contents of the driver's step buffer that workers write."""
    step_buffer = envs._session._step_buffer
    arrays = [
        step_buffer.rewards,
        step_buffer.terminated,
        step_buffer.truncated,
        step_buffer.finished,
        step_buffer.info_kinds,
        step_buffer.infos,
    ]
    return [array.tobytes() for array in (*arrays, *step_buffer.observations)]


def step(envs: ParallelVectorEnv) -> Any:
    return envs.step(np.zeros(envs.num_envs, np.int64))


def test_a_step_raises_when_a_host_is_dropped_and_nothing_is_written(hosts: Any, stepping: Any) -> None:
    before: list[bytes] = []

    def misbehave(host: SteppingHost, sender: Sender, good: Any) -> None:
        if sender.worker == 1:
            before.extend(answered(envs))
            host.say(replace(good, rows=[0, SHARE]), sender)

    stepping(2, misbehave)
    envs = make_envs(hosts, 2)
    with contextlib.closing(envs):
        envs.reset()
        with pytest.raises(HostLostError, match="it sent a message that is not allowed"):
            step(envs)
        assert refused_by(envs) == {"dropped": 1}
        assert answered(envs) == before


@pytest.mark.more
def test_a_kind_of_info_that_was_never_sent_is_an_error(hosts: Any, stepping: Any) -> None:
    def misbehave(host: SteppingHost, sender: Sender, good: Any) -> None:
        unknown = with_bytes(good, KINDS_AT, kinds(5, 0), bytes(1024))
        status_slot = np.array([0, 2, 1, 0], "<i8").tobytes()
        host.say(replace(unknown, status_slot=status_slot), sender)

    stepping(1, misbehave)
    envs = make_envs(hosts, 1)
    with contextlib.closing(envs):
        envs.reset()
        with pytest.raises(ProtocolError, match="a worker has not sent a kind of info number 5"):
            step(envs)


@pytest.mark.more
def test_messages_that_a_host_counts_and_never_sends_are_awaited_for_one_step(hosts: Any, stepping: Any) -> None:
    def misbehave(host: SteppingHost, sender: Sender, good: Any) -> None:
        host.say(replace(good, status_slot=np.array([0, 1 << 40, 0, 0], "<i8").tobytes()), sender)

    stepping(1, misbehave)
    envs = make_envs(hosts, 1, step_timeout_s=1.0)
    with contextlib.closing(envs):
        envs.reset()
        with pytest.raises(WorkerTimeoutError, match=r"did not answer within step_timeout_s=1 s .*\s+stuck$"):
            step(envs)


@pytest.mark.more
def test_answers_of_a_generation_that_is_gone_are_ignored(hosts: Any, stepping: Any) -> None:
    def misbehave(host: SteppingHost, sender: Sender, good: Any) -> None:
        if sender.generation == 0:
            host.say(Gone(77, 3, None, ""), sender)
            host.say(good, sender)
        else:
            host.say(good, sender)
            host.say(with_bytes(good, REWARDS_AT, np.array([7.0, 7.0]).tobytes()), Sender(0, 0))

    stepping(1, misbehave)
    envs = make_envs(hosts, 1, on_worker_death="restart")
    with contextlib.closing(envs):
        envs.reset()
        _, rewards, _, truncated, infos = step(envs)
        assert rewards.tolist() == [0.0, 0.0]
        assert truncated.all()
        assert infos["worker_restarted"].all()
        assert step(envs)[1].tolist() == [666.0, 666.0]
        assert refused_by(envs) == {}
        assert envs._session._step_buffer.rewards.tolist() == [666.0, 666.0]


class Flood:
    """Listener with a host that sends without a pause."""

    def __init__(self, frames: list[bytes]) -> None:
        self.refusals: Counter[str] = Counter()
        self.admission = SimpleNamespace(ended=0)
        self.frames, self.received = frames, 0

    def polled(self) -> list[Any]:
        return []

    def notice(self, ready: Any) -> None:
        """Do nothing, because nothing is polled."""

    def receive(self) -> Any:
        self.received += 1
        assert self.received < 10_000, "the main process does not stop to receive"
        return b"host", "host5", self.frames


def test_hosts_that_send_without_a_pause_do_not_keep_the_main_process() -> None:
    flood: Any = Flood(to_frames(HOST, Goodbye()))
    placing = RemotePlacement("tcp://127.0.0.1:1", key="driver.key", hosts="hosts.pub")
    hosts = placement.HostsPlacement(flood, placing, None, None)
    for turn in range(1, 4):
        assert hosts.wait(0.0) == []
        assert flood.received == turn * placement.MAX_MESSAGES_AT_ONCE
