"""A worker host: joins a driver, starts workers for it, and forwards messages and data in both directions."""

from __future__ import annotations

import os
import platform
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.errors import ProtocolError
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot, status_slot
from parenv.placement.base import Arrived, Ended, Launch
from parenv.placement.local import LocalPlacement
from parenv.process.descriptors import make_room, occupy_standard_descriptors
from parenv.process.stack_pipe import STACK_SIGNAL
from parenv.protocol.data import Buffer
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Close, Commit, Credit, Failure, Reply
from parenv.remote import host_messages as wire
from parenv.remote.net.curve import HostSocket
from parenv.remote.net.host_keys import HostKeys
from parenv.remote.step_buffers import HostRows
from parenv.remote.transfer import in_chunks, write_chunk
from parenv.transport.waiting import remaining

HEARTBEAT_S = 0.25
PATIENCE_S = 60.0
GRACE_S = 5.0
FRAME_BYTES = 64
"""Upper bound of the overhead of a frame on the network."""
_NUM_ENDS = struct.Struct("<i")


class Outcome(Enum):
    """End of a session with a driver."""

    OVER = "the driver has closed its pool"
    LEFT = "told to leave"
    REFUSED = "refused"
    LOST = "the connection was lost"
    NOBODY = "no driver"


EXIT_CODES = {Outcome.OVER: 0, Outcome.LEFT: 0, Outcome.REFUSED: 2, Outcome.NOBODY: 1}


def serve(
    address: str,
    keys: HostKeys,
    num_workers: int,
    *,
    patience_s: float = PATIENCE_S,
    tell: Callable[[str], None] = print,
    is_leaving: Callable[[], bool] = lambda: False,
) -> int:
    """Run workers for a driver until it closes its pool. After a lost connection, join it again.

    Args:
        address: Address of the driver, ``tcp://HOST:PORT``.
        keys: Keys of this host.
        num_workers: Maximum number of workers.
        patience_s: Seconds to look for a driver, at the start and after a lost connection.
        tell: Function that receives reports as text.
        is_leaving: Function that returns whether to leave. It is called at intervals.

    Returns:
        Exit code. 0: the driver has closed its pool, or this host leaves. 1: no driver was found. 2: the driver refused
        this host.
    """
    make_room(num_workers)
    occupy_standard_descriptors()
    while True:
        deadline = time.monotonic() + patience_s
        session = HostSession(address, keys, num_workers, is_leaving)
        try:
            outcome = session.run(deadline, tell)
        finally:
            session.close()
        if outcome is not Outcome.LOST:
            nobody = f"no driver at {address} for {patience_s:g} s. {session.reason}".rstrip(" .")
            words = {Outcome.REFUSED: session.reason, Outcome.NOBODY: nobody}
            tell(words.get(outcome, outcome.value))
            return EXIT_CODES[outcome]
        tell(f"{outcome.value}; looking for the driver for {patience_s:g} s")


class HostSession:
    """A connection to a driver, with the workers and the memory that end with it.

    Args:
        address: Address of the driver.
        keys: Keys of this host.
        num_workers: Maximum number of workers.
        is_leaving: Function that returns whether to leave.

    Attributes:
        reason: Reason of a refusal by the driver.
    """

    def __init__(self, address: str, keys: HostKeys, num_workers: int, is_leaving: Callable[[], bool]) -> None:
        self._address, self._num_workers, self._is_leaving = address, num_workers, is_leaving
        self._driver = HostSocket(address, keys)
        self._outbox: deque[list[Buffer]] = deque()
        self._local = LocalPlacement(beside=self._driver, has_script=False)
        self._launch: Launch | None = None
        self._memory = SharedMemory()
        self._mapping: Any = None
        self._max_message_bytes = 0
        self._rows: HostRows | None = None
        self._plans: dict[int, wire.SlotPlan] = {}
        self._snapshot = Credit(-1, -1, -1, -1, b"")
        """The last credit with a snapshot. A snapshot is sent once for all workers here."""
        self._running: dict[Sender, bool] = {}
        self._next_beat = 0.0
        self._outcome: Outcome | None = None
        self.reason = ""

    def run(self, deadline: float, tell: Callable[[str], None]) -> Outcome:
        """Join the driver and serve it."""
        self._say(wire.Join(wire.own_versions(), platform.node(), os.getpid(), self._num_workers))
        joined = False
        while self._outcome is None:
            self._serve()
            state = self._driver.look()
            if state == "lost":
                return self._outcome or Outcome.LOST
            if state == "refused" and self._outcome is None:
                self.reason = (
                    f"the driver at {self._address} does not accept this key, or is not the driver of this key file"
                )
                return Outcome.REFUSED
            if state == "connecting" and not remaining(deadline):
                if self._driver.link.broken_handshakes:
                    self.reason = "a program there ends the connection, and may not be the driver of the key file"
                return Outcome.NOBODY
            if self._launch is not None and not joined:
                joined = True
                tell(f"joined the driver at {self._address} with room for {self._num_workers} workers")
            if self._is_leaving():
                self._say(wire.Goodbye())
                self._outcome = Outcome.LEFT
        return self._outcome

    def close(self) -> None:
        """End the workers and close the connection. Idempotent."""
        try:
            for worker in self._running:
                self._local.send(worker, Close())
            if self._rows is not None:
                self._rows.close()
            self._local.close(GRACE_S if self._outcome is Outcome.LEFT else 0.0)
        finally:
            # The goodbye of a host that leaves may still be in the outbox.
            self._flush()
            self._driver.close(GRACE_S if self._outcome is not None else 0.0)
            self._memory.close()

    def _serve(self) -> None:
        """Wait for events until the next heartbeat, and process them."""
        events = self._local.wait(remaining(self._next_beat))
        # Answers in step buffers go before messages.
        for worker, answers in self._rows.answers() if self._rows is not None else ():
            self._say(answers, worker)
        for event in events:
            self._relay(event)
        self._report_pids()
        # A message may end the session. Later messages are not obeyed.
        while self._outcome is None and (frames := self._driver.receive()) is not None:
            try:
                sender, message = from_frames(frames)
            except ProtocolError as error:
                self.reason = f"the driver at {self._address} has sent a malformed message: {error}"
                self._outcome = Outcome.REFUSED
                return
            self._obey(sender, message)
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + HEARTBEAT_S
            # Heartbeats behind a full outbox would be old when they arrive.
            if self._launch is not None and not self._outbox:
                self._beat()
        self._flush()

    def _beat(self) -> None:
        workers = [worker.worker for worker in self._running]
        self._say(wire.Heartbeat(workers, b"".join(bytes(status_slot(self._mapping, worker)) for worker in workers)))

    def _say(self, message: wire.AnyMessage, about: Sender = wire.HOST) -> None:
        self._outbox.append(to_frames(about, message))

    def _flush(self) -> None:
        while self._outbox and self._driver.send(self._outbox[0]):
            self._outbox.popleft()
        self._driver.want_to_write(bool(self._outbox))

    def _relay(self, event: Arrived) -> None:
        """Forward an event of a worker. The data of a rollout go before its commit."""
        sender = event.sender
        if isinstance(event, Ended):
            # The driver reports the last activity of the worker, so its status goes before the news of its end.
            self._beat()
            self._running.pop(sender, None)
            self._say(wire.Gone(event.pid, event.exit_code, event.signal, event.refused), sender)
            return
        message = event.message
        if isinstance(message, Commit):
            for chunks in self._committed(self._plans[sender.worker], message.sequence):
                self._say(wire.Chunks(message.sequence, chunks), sender)
        self._outbox.append(fitting(sender, message, self._max_message_bytes))

    def _committed(self, plan: wire.SlotPlan, sequence: int) -> Iterator[list[Any]]:
        """Yield the rollout of a credit, in lists of chunks for one message each."""
        begin = plan.offset + sequence % plan.count * plan.slot_bytes
        slot = memoryview(self._mapping)[begin : begin + plan.slot_bytes]
        parts = [(0, plan.fixed_bytes)]
        for ends_offset, per_end in plan.ends:
            (count,) = _NUM_ENDS.unpack_from(slot, ends_offset)
            parts += [(offset, count * each) for offset, each in per_end]
        return in_chunks(slot, parts, wire.CHUNK_BYTES)

    def _report_pids(self) -> None:
        # The process id is known only when the fork server has forked the worker, some time after its start.
        for worker, reported in self._running.items():
            if not reported and (pid := self._local.pid(worker)) > 0:
                self._running[worker] = True
                self._say(wire.Started(pid), worker)

    def _obey(self, sender: Sender, message: Any) -> None:
        if isinstance(message, wire.Welcome):
            self._settle(message)
        elif isinstance(message, wire.Refuse):
            self.reason, self._outcome = f"the driver at {self._address} refuses: {message.reason}", Outcome.REFUSED
        elif isinstance(message, wire.Goodbye):
            self._say(wire.Goodbye())
            self._outcome = Outcome.OVER
        elif isinstance(message, wire.Weights):
            write_chunk(self._mapping, message)
        # Before its welcome, a host has no memory for workers.
        elif self._launch is not None:
            self._obey_about(sender, message, self._launch)

    def _obey_about(self, sender: Sender, message: Any, launch: Launch) -> None:
        if isinstance(message, wire.Start):
            StatusSlot(self._mapping, sender.worker).begin("starting")
            self._running[sender] = False
            if self._rows is not None:
                self._rows.start(sender)
            self._local.start(launch, [sender])
        elif isinstance(message, wire.Signal):
            if message.signum == STACK_SIGNAL:
                self._say(wire.Stack(self._local.stack(sender)), sender)
            else:
                self._local.signal(sender, message.signum, bool(message.alone))
        elif isinstance(message, wire.SlotPlan):
            self._make_room(sender.worker, message)
        elif isinstance(message, wire.RowPlan | wire.Requests) and self._rows is not None:
            self._rows.obey(sender, message)
        elif not isinstance(message, wire.HOST_KINDS):
            if isinstance(message, Close):
                # A worker that collects a rollout reads no messages. It checks this flag at every row.
                StatusSlot(self._mapping, sender.worker).closing[0] = True
            elif isinstance(message, Credit) and message.snapshot:
                self._snapshot = message
            elif isinstance(message, Credit) and _is_of_one_version(message, self._snapshot):
                message = replace(message, snapshot=self._snapshot.snapshot)
            self._local.send(sender, message)

    def _settle(self, welcome: wire.Welcome) -> None:
        self._memory.grow(welcome.head_bytes)
        self._mapping = self._memory.map()
        self._max_message_bytes = welcome.max_message_bytes
        self._rows = HostRows(self._memory, self._local) if welcome.wake_ups else None
        self._launch = Launch(
            memory=self._memory.handle,
            job=welcome.job,
            preload=tuple(welcome.preload),
            environment=dict(welcome.environment),
            threads=welcome.threads,
            handles=(self._rows.wake_up.notifying,) if self._rows is not None else (),
            spawn=bool(welcome.spawn),
            entry=welcome.entry,
        )

    def _make_room(self, worker: int, plan: wire.SlotPlan) -> None:
        self._plans[worker] = plan
        self._memory.grow(plan.offset + plan.count * plan.slot_bytes)
        # A host without enough memory fails here with a message. Otherwise, a worker would die of SIGBUS.
        for slot in range(plan.count):
            self._memory.reserve(plan.offset + slot * plan.slot_bytes, plan.fixed_bytes)
        # A map does not grow with its memory.
        self._mapping = self._memory.map()


def _is_of_one_version(one: Credit, other: Credit) -> bool:
    return (one.policy_version, one.weights_slot) == (other.policy_version, other.weights_slot)


def fitting(sender: Sender, message: Any, max_message_bytes: int) -> list[Buffer]:
    """Encode a message of a worker, or an exception in its place if the message is larger than a message may be."""
    frames = to_frames(sender, message)
    if (size := sum(len(frame) + FRAME_BYTES for frame in frames)) <= max_message_bytes:
        return frames
    call = message.sequence if isinstance(message, Reply) else -1
    doing = "commit" if isinstance(message, Commit) else "call"
    kind = ["parenv.errors", "NotDataError"]
    excess = (
        f"a message must have at most max_message_bytes={max_message_bytes:,} bytes, got {size:,}. Raise "
        "RemotePlacement.max_message_bytes."
    )
    failure = Failure(call, 0, env_id=-1, doing=doing, kind=kind, message=excess, traceback="")
    return to_frames(sender, failure)
