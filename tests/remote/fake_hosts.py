"""Fake hosts, which join over the network like real ones and then send the messages of a test."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from fake_driver import ACTED, INFO_BYTES, OBSERVED, SHARE, STEP_READY

from parenv.memory.spaces import leaves
from parenv.memory.status_slot import STATUS_SLOT_BYTES
from parenv.memory.step_buffer import OwnRequests, StepBuffer, StepBufferSpec
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Call, Reply, Rows
from parenv.remote.host_messages import (
    HOST,
    Answers,
    Gone,
    Goodbye,
    Join,
    Refuse,
    Requests,
    RowPlan,
    Signal,
    Stack,
    Start,
    Started,
    own_versions,
)
from parenv.remote.net.curve import HostSocket
from parenv.remote.net.host_keys import read_host_keys
from parenv.remote.step_buffers import WorkerRows
from parenv.transport.waiting import Waiting

LATE_S = 120.0


class FakeHost:
    """Host without workers.

    Args:
        hosts: Hosts of the test, with the address of the driver and the keys.
        name: Name of its key.
    """

    def __init__(self, hosts: Any, name: str = "host5") -> None:
        self._socket = HostSocket(hosts.address, read_host_keys(hosts.keys / f"{name}.key"))
        self._waiting = Waiting()
        self._waiting.watch(self._socket)
        self.heard: list[tuple[Sender, Any]] = []

    def join(self, **changed: Any) -> None:
        self.say(replace(Join(own_versions(), "nowhere", 1, 1), **changed))

    def say(self, message: Any, about: tuple[int, int] = HOST) -> None:
        """Send a message, given as a message or as frames."""
        frames = message if isinstance(message, list) else to_frames(Sender(*about), message)
        self.until(lambda: self._socket.send(frames))

    def hear(self, kind: type) -> Any:
        """Wait for the next message of a type; return the worker that it is about, and the message."""
        while True:
            self.until(self._has_heard)
            if isinstance(self.heard[-1][1], kind):
                return self.heard[-1]

    def until(self, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + LATE_S
        while not holds():
            assert time.monotonic() < deadline
            assert not self.is_lost
            self._waiting.wait(0.05)

    @property
    def is_lost(self) -> bool:
        return self._socket.look() not in ("connecting", "connected")

    def close(self) -> None:
        self._socket.close(0.0)

    def _has_heard(self) -> bool:
        if (frames := self._socket.receive()) is not None:
            self.heard.append(from_frames(frames))
        return frames is not None


Misbehaviour = Callable[["SteppingHost", Sender, Answers], None]


class SteppingHost(FakeHost):
    """Host of a vector env that answers for its workers in a thread.

    Args:
        hosts: Hosts of the test, with the address of the driver and the keys.
        name: Name of its key.
        capacity: Number of workers that it accepts.
        misbehave: Function that is called instead of answering a step. If it is ``None``, the host answers.
    """

    def __init__(self, hosts: Any, name: str, capacity: int, misbehave: Misbehaviour | None) -> None:
        super().__init__(hosts, name)
        self._misbehave = misbehave
        self._plans: dict[Sender, RowPlan] = {}
        self._rows: dict[Sender, tuple[WorkerRows, StepBuffer]] = {}
        self._over = threading.Event()
        self.join(capacity=capacity)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def answers(self, sender: Sender, reward: float = 666.0) -> Answers:
        """Return the answers of an honest host to the last step."""
        rows, step_buffer = self._rows[sender]
        mine = slice(sender.worker * SHARE, (sender.worker + 1) * SHARE)
        step_buffer.rewards[mine] = reward
        step_buffer.finished[mine] = step_buffer.requested[mine]
        ((numbers, data),) = rows.answers(1 << 20)
        return Answers(numbers, bytes(STATUS_SLOT_BYTES), data)

    def end(self) -> None:
        self._over.set()
        self._thread.join(LATE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._over.is_set() and not self.is_lost:
            self._waiting.wait(0.05)
            while self._has_heard():
                self._obey(*self.heard[-1])
        self.close()

    def _obey(self, sender: Sender, message: Any) -> None:
        if isinstance(message, Start):
            self.say(Started(77), sender)
            self.say(STEP_READY, sender)
        elif isinstance(message, RowPlan):
            self._plans[sender] = message
        elif isinstance(message, Rows):
            plan, memory = self._plans[sender], np.zeros(self._plans[sender].memory_bytes, np.uint8)
            rows = WorkerRows(memory, plan)
            rows.forget()
            assert message.info_bytes == INFO_BYTES
            spec = StepBufferSpec(message.num_envs, leaves(OBSERVED), leaves(ACTED), message.info_bytes)
            self._rows[sender] = rows, StepBuffer(spec, memory, message.offset)
        elif isinstance(message, Requests):
            rows, step_buffer = self._rows[sender]
            rows.write_requests(message.data)
            mine = slice(sender.worker * SHARE, (sender.worker + 1) * SHARE)
            if not OwnRequests(step_buffer, mine).due():
                # A message about these requests follows.
                return
            if self._misbehave is not None:
                self._misbehave(self, sender, self.answers(sender))
            else:
                self.say(self.answers(sender, 1.0), sender)
        elif isinstance(message, Call):
            self.say(self.answers(sender, 0.0), sender)
            self.say(Reply(message.sequence, []), sender)
        elif isinstance(message, Signal) and message.signum == signal.SIGKILL:
            self.say(Gone(77, None, int(signal.SIGKILL), ""), sender)
        elif isinstance(message, Signal):
            self.say(Stack("stuck"), sender)
        elif isinstance(message, Refuse | Goodbye):
            self._over.set()
