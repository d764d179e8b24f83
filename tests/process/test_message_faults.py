"""Check that a lost, repeated, delayed or overtaken message causes no hang and no duplicate or broken rollout."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from envs import Acting, once, slow
from inside import deaths_of, pid_of, workers_of
from policies import zeros
from sampling import one_in

from parenv import AsyncWorkerPool, ParenvError, RestartPolicy, WorkerDiedError, WorkerOptions, WorkerTimeoutError
from parenv.errors import ProtocolError
from parenv.placement.local import LocalPlacement
from parenv.protocol.frames import from_frames
from parenv.protocol.messages import Call, Close, Commit, Credit, Failure, Layout, Message, Ready, Reply
from parenv.testing import LedgerEnv, check_ledger
from parenv.transport.zeromq import DriverSocket, Frames

pytestmark = [pytest.mark.usefixtures("warnings_are_expected")]

DELAY_S = 0.15
STEP_TIMEOUT_S = 2.0
KINDS = (Ready, Layout, Credit, Commit, Call, Reply, Failure, Close)
FAULTS = ("lose", "repeat", "delay", "overtake")
NEED_A_TIMEOUT = ("lose", "overtake")
CONTINUES = "the pool continues normally"
REPLACED = "the worker is replaced"
CALL_FAILS = "the call is an error and the worker replaced"
NO_START = "the pool does not start"

# There are two possible outcomes if the order of messages depends on timing.
OUTCOMES: dict[tuple[type[Message], str], dict[str, set[str]]] = {
    (Ready, "lose"): {"both": {NO_START}},
    (Ready, "repeat"): {"both": {NO_START}},
    (Ready, "delay"): {"both": {CONTINUES}},
    (Ready, "overtake"): {"both": {NO_START}},
    (Layout, "lose"): {"both": {REPLACED}},
    (Layout, "repeat"): {"both": {REPLACED}},
    (Layout, "delay"): {"both": {CONTINUES, REPLACED}},
    (Layout, "overtake"): {"both": {REPLACED}},
    (Credit, "lose"): {"both": {REPLACED}},
    (Credit, "repeat"): {"both": {CONTINUES}},
    (Credit, "delay"): {"sync": {CONTINUES}, "async": {CONTINUES, REPLACED}},
    (Credit, "overtake"): {"sync": {REPLACED}, "async": {CONTINUES, REPLACED}},
    (Commit, "lose"): {"both": {REPLACED}},
    (Commit, "repeat"): {"both": {CONTINUES}},
    (Commit, "delay"): {"sync": {CONTINUES}, "async": {CONTINUES, REPLACED}},
    (Commit, "overtake"): {"sync": {REPLACED}, "async": {CONTINUES, REPLACED}},
    (Call, "lose"): {"both": {CALL_FAILS}},
    (Call, "repeat"): {"both": {CONTINUES}},
    (Call, "delay"): {"both": {CONTINUES}},
    (Call, "overtake"): {"both": {CALL_FAILS}},
    (Reply, "lose"): {"both": {CALL_FAILS}},
    (Reply, "repeat"): {"both": {CONTINUES}},
    (Reply, "delay"): {"both": {CONTINUES}},
    (Reply, "overtake"): {"sync": {CALL_FAILS}, "async": {CONTINUES, CALL_FAILS}},
    (Failure, "lose"): {"both": {CALL_FAILS}},
    (Failure, "repeat"): {"both": {CONTINUES}},
    (Failure, "delay"): {"both": {CONTINUES}},
    (Failure, "overtake"): {"sync": {CALL_FAILS}, "async": {CONTINUES, CALL_FAILS}},
    **{(Close, fault): {"both": {CONTINUES}} for fault in FAULTS},
}


class Later(NamedTuple):
    """Delayed message, with the time at which it is due and the receiving worker (``None``: sent by a worker)."""

    due_s: float
    to: tuple[int, int] | None
    frames: Frames


class FaultyLine:
    """Fault of one message of a kind, which is injected in the sockets of the main process. All other messages pass.

    Args:
        kind: Kind of the message.
        fault: ``"lose"``, ``"repeat"``, ``"delay"`` (by :data:`DELAY_S`) or ``"overtake"`` (by the next message of the
            same worker in the same direction).
        spared: Number of messages of this kind that pass before the fault.
        worker: Worker whose message is chosen (default: any).
    """

    def __init__(self, kind: type[Message], fault: str, spared: int, worker: int | None = None) -> None:
        self.kind, self._fault, self._spared, self._worker = kind, fault, spared, worker
        self._later: list[Later] = []
        self._overtaken: tuple[Any, Frames] | None = None
        self._received: deque[Frames] = deque()
        self.has_happened = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the methods of all sockets of main processes by faulty ones."""
        send, receive, wait = DriverSocket.send, DriverSocket.receive, LocalPlacement.wait

        def faulty_send(socket: DriverSocket, worker: int, generation: int, frames: Frames) -> None:
            for one in self._pass((worker, generation), frames):
                send(socket, worker, generation, one)

        def faulty_receive(socket: DriverSocket) -> Any:
            while (frames := receive(socket)) is not None:
                self._received.extend(self._pass(None, frames))
            self._received.extend(late.frames for late in self._take_due(outgoing=False))
            return self._received.popleft() if self._received else None

        def faulty_wait(placement: LocalPlacement, timeout_s: float) -> Any:
            next_s = min((late.due_s for late in self._later), default=float("inf")) - time.monotonic()
            events = wait(placement, min(timeout_s, next_s))
            for late in self._take_due(outgoing=True):
                if late.to is not None and placement._socket is not None:
                    send(placement._socket, *late.to, late.frames)
            return events

        monkeypatch.setattr(DriverSocket, "send", faulty_send)
        monkeypatch.setattr(DriverSocket, "receive", faulty_receive)
        monkeypatch.setattr(LocalPlacement, "wait", faulty_wait)

    def _pass(self, to: tuple[int, int] | None, frames: Frames) -> list[Frames]:
        """Return the messages to pass on when a message is sent or received."""
        sender, message = from_frames(frames)
        channel = (to is None, sender)
        if self._overtaken is not None and self._overtaken[0] == channel:
            (_, overtaken), self._overtaken = self._overtaken, None
            return [frames, overtaken]
        if type(message) is not self.kind or self.has_happened or self._worker not in (None, sender.worker):
            return [frames]
        self._spared -= 1
        if self._spared >= 0:
            return [frames]
        self.has_happened = True
        if self._fault == "repeat":
            return [frames, frames]
        if self._fault == "delay":
            self._later.append(Later(time.monotonic() + DELAY_S, to, frames))
        elif self._fault == "overtake":
            self._overtaken = (channel, frames)
        return []

    def _take_due(self, outgoing: bool) -> list[Later]:
        now_s = time.monotonic()
        due = [late for late in self._later if late.due_s <= now_s and (late.to is not None) == outgoing]
        self._later = [late for late in self._later if late not in due]
        return due


def makers(count: int) -> list[Any]:
    return [functools.partial(Acting, env_id) for env_id in range(count)]


def fail(env: Any) -> None:
    """Raise the exception that a call must raise."""
    raise LookupError("as asked")


def options(**more: Any) -> WorkerOptions:
    return WorkerOptions(restart=RestartPolicy(backoff_s=1e-3), close_timeout_s=0.25, **more)


@pytest.fixture(scope="module", autouse=True)
def _fork_server_has_started() -> None:
    """Start the fork server, so that the time limits of tests apply only to the start of workers."""
    AsyncWorkerPool(makers(1), zeros, num_workers=1, workers=options()).close()


def use(pool: AsyncWorkerPool, line: FaultyLine) -> list[Exception]:
    """Check rollouts and call methods until every worker has delivered rollouts that it began after the fault.

    Returns:
        Errors that calls raised because of the fault.
    """
    expected: dict[int, tuple[int, int]] = {}
    errors: list[Exception] = []
    stream = pool.rollouts()
    for _ in range(2):
        given: Counter[int] = Counter()
        while min(given[env_id] for env_id in range(4)) < 5:
            rollout = next(stream)
            check_ledger(rollout, expected)
            given.update(rollout.env_ids.tolist() if line.has_happened or line.kind not in (Credit, Commit) else ())
        try:
            assert pool.get_attr("_max_length") == (7, 7, 7, 7)
        except ParenvError as error:
            errors.append(error)
        try:
            with pytest.raises(LookupError, match="as asked"):
                pool.call("do", fail, env_ids=[3])
        except ParenvError as error:
            errors.append(error)
        pool.publish(zeros)
    return errors


def outcome(mode: Any, prefetch: int, line: FaultyLine, workers: WorkerOptions) -> str:
    """Run a pool with a fault, and return the outcome."""
    pool = None
    try:
        with AsyncWorkerPool(
            makers(4), zeros, num_workers=2, mode=mode, rollout_length=4, prefetch=prefetch, workers=workers
        ) as pool:
            errors = use(pool, line)
            deaths = [*deaths_of(pool, 0), *deaths_of(pool, 1)]
            restarts = pool.statistics().worker_restarts
    except ParenvError:
        assert pool is None
        return NO_START
    assert pool.closed
    # On a busy machine, a worker without a fault may exceed such a short time limit too.
    assert sum(not isinstance(death, WorkerTimeoutError) for death in deaths) <= 1, deaths
    assert all(isinstance(death, WorkerTimeoutError | WorkerDiedError | ProtocolError) for death in deaths), deaths
    # A call may fail because its worker is being replaced for another reason.
    assert len(errors) <= len(deaths), errors
    if not restarts:
        return CONTINUES
    return CALL_FAILS if line.kind in (Call, Reply, Failure) and errors else REPLACED


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("kind", "fault", "mode"), one_in(3, KINDS, FAULTS, ["sync", "async"]))
def test_no_fault_of_a_message_causes_a_hang_or_a_wrong_rollout(
    kind: type[Message], fault: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_mode = OUTCOMES[kind, fault]
    wanted = by_mode.get("both") or by_mode[mode]
    limit_s = STEP_TIMEOUT_S if fault in NEED_A_TIMEOUT and wanted != {CONTINUES} else 100.0
    start_limit_s = 3.0 if wanted == {NO_START} else 100.0
    if wanted == {NO_START}:
        # Start the fork server first, so that the time limit applies only to the start of workers.
        with AsyncWorkerPool(makers(4), zeros, num_workers=2, workers=options()):
            pass
    line = FaultyLine(kind, fault, spared=0)
    line.install(monkeypatch)
    found = outcome(mode, 1, line, options(step_timeout_s=limit_s, start_timeout_s=start_limit_s))
    assert line.has_happened
    assert found in wanted


@pytest.mark.one_in(9)
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("fault", ["lose", "delay", "overtake"])
@pytest.mark.parametrize("kind", [Credit, Commit])
def test_no_fault_in_the_middle_of_a_stream_causes_a_hang_or_a_wrong_rollout(
    kind: type[Message], fault: str, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = FaultyLine(kind, fault, spared=7)
    line.install(monkeypatch)
    found = outcome(
        "async", prefetch, line, options(step_timeout_s=STEP_TIMEOUT_S if fault in NEED_A_TIMEOUT else 100.0)
    )
    assert line.has_happened
    assert found in (CONTINUES, REPLACED)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("lose", WorkerTimeoutError), ("repeat", LookupError), ("delay", LookupError), ("overtake", WorkerTimeoutError)],
)
def test_a_failed_worker_is_replaced_once_for_the_first_reported_reason(
    fault: str, reason: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_once(env: Any) -> None:
        if env.episode == 1 and once(tmp_path / "flag"):
            raise LookupError("once")

    line = FaultyLine(Failure, fault, spared=0)
    line.install(monkeypatch)
    # Long enough for a healthy worker on a busy machine, which must not be replaced.
    limit_s = 6.0 if reason is WorkerTimeoutError else 100.0
    workers = options(step_timeout_s=limit_s, on_env_error="restart_worker")
    expected: dict[int, tuple[int, int]] = {}
    with AsyncWorkerPool(
        [lambda: LedgerEnv(0), lambda: Acting(1, raise_once)],
        zeros, num_workers=2, mode="sync", rollout_length=8, workers=workers,
    ) as pool:  # fmt: skip
        stream = pool.rollouts()
        restarted = [
            rollout.restarted.tolist() for rollout in itertools.islice(stream, 5) if check_ledger(rollout, expected)
        ]
        (death,) = deaths_of(pool, 1)
    assert line.has_happened
    assert restarted.count([False, True]) == 1
    assert isinstance(death, reason)


@pytest.mark.more
@pytest.mark.parametrize("kind", [Commit, Reply])
def test_after_a_repeated_message_a_waiting_worker_is_kept_and_a_hung_one_is_replaced(
    kind: type[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = FaultyLine(kind, "repeat", spared=0, worker=0)
    line.install(monkeypatch)
    with AsyncWorkerPool(
        [lambda: LedgerEnv(0), lambda: slow(1, 0.15)],
        zeros, num_workers=2, mode="sync", rollout_length=4, workers=options(step_timeout_s=10.0),
    ) as pool:  # fmt: skip
        pool.get_attr("_max_length")
        stream = pool.rollouts()
        next(stream)
        assert line.has_happened
        assert workers_of(pool).refused_messages == 1
        assert pool.statistics().worker_restarts == 0
        pid = pid_of(pool, 0)
        assert pid > 0
        os.kill(pid, signal.SIGSTOP)
        assert next(stream).restarted.tolist() == [True, False]
