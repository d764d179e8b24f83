"""Workers as processes on this machine."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.errors import ProtocolError
from parenv.memory.shared import SharedMemory
from parenv.placement.base import KILL_TIMEOUT_S, Arrived, Ended, Launch, Received, SteppingPlacement
from parenv.platform.base import Handle
from parenv.process.descriptors import check_free
from parenv.process.launcher import ForkServerSpec, Launcher
from parenv.process.script_settings import settings_of_script
from parenv.process.stack_pipe import STACK_SIGNAL, StackPipe
from parenv.process.wake_up import Poller, WakeUp, WakeUps, WorkerWakeUp
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Message
from parenv.transport.waiting import Source, Waiting, remaining
from parenv.transport.zeromq import DESCRIPTORS, DriverSocket

_log = logging.getLogger("parenv")
LAST_MESSAGES_S = 5.0
"""Time limit in seconds for messages that a worker has sent before it ended."""


class LocalPlacement(SteppingPlacement):
    """Workers that a fork server forks, connected over ZeroMQ sockets without a name in the file system.

    Args:
        beside: Another source of events, for which :meth:`wait` returns as well. Default: none.
        has_script: Whether this process is the user's script, whose settings workers get. Default: yes.
    """

    def __init__(self, beside: Source | None = None, has_script: bool = True) -> None:
        self._has_script = has_script
        self._waiting = Waiting()
        if beside is not None:
            self._waiting.watch(beside)
        self._is_alone = beside is None
        self._launcher: Launcher | None = None
        self._socket: DriverSocket | None = None
        self._job: SharedMemory | None = None
        self._pickled = b""
        self._stacks: StackPipe | None = None
        self._handles: dict[int, Sender] = {}
        self._worker_wake_ups: dict[int, WorkerWakeUp] = {}
        self._wake_ups: dict[Sender, WorkerWakeUp] = {}
        self._notified: WakeUp | None = None
        self._are_due: Callable[[], bool] | None = None

    def start(self, launch: Launch, workers: Sequence[Sender]) -> None:
        """Start workers, and return at once."""
        launcher = self._open_launcher(launch)
        for worker in workers:
            handle = len(self._handles)
            self._handles[handle] = worker
            if worker.worker in self._worker_wake_ups:
                self._wake_ups[worker] = self._worker_wake_ups[worker.worker]
            launcher.launch(handle, launch.entry, *self._inheritance(worker, launch))

    def send(self, to: Sender, message: Message) -> None:
        """Send a message. A message to a dead worker is dropped, because :meth:`wait` reports its end."""
        if self._socket is None:
            return
        frames = to_frames(to, message)
        if to in self._wake_ups:
            # The wake-up comes first. A message without one would be lost if a signal handler raises between the two.
            self._wake_ups[to].notify_of_message()
        self._socket.send(*to, frames)

    def wait(self, timeout_s: float) -> list[Arrived]:
        """Return all events, and wait up to the limit for the first one.

        The end of a worker comes after all messages that it sent.
        """
        if self._socket is None and self._is_alone:
            return []
        if self._launcher is not None:
            self._launcher.flush()
        ready = self._waiting.wait(timeout_s, only_descriptors=self._are_due is not None)
        if self._notified is not None and self._notified.fileno() in ready:
            self._notified.take()
            ready.remove(self._notified.fileno())
        if self._are_due is not None and (ready or self._are_due()):
            self._are_due = None
        if self._launcher is None:
            return self._received()
        exited = self._launcher.events() if self._launcher.fileno() in ready else []
        if self._launcher.lost:
            self._end_launcher()
        return self._received() + [Ended(self._handles[one.handle], *one[1:]) for one in exited]

    def notified_by(self, wake_up: WakeUp) -> None:
        """Have :meth:`wait` return also when workers notify this wake-up, which must not block."""
        self._notified = wake_up
        self.watch(wake_up.fileno())

    def ignore_messages(self, are_due: Callable[[], bool]) -> None:
        """Have :meth:`wait` sleep although messages arrive, until a worker has ended or a function returns ``True``.

        The function is called after each wake-up.
        """
        self._are_due = are_due

    def wake_up(self, worker: int, wake_ups: WakeUps) -> WorkerWakeUp:
        """Make the wake-up of the next process of a worker. It is notified of every message too."""
        if self._socket is not None:
            # If no other descriptor is free, the wake-up takes a descriptor of the dead process.
            self._socket.drop(worker)
        wake_up = self._worker_wake_ups[worker] = wake_ups.of(worker)
        return wake_up

    def poller(self, descriptor: int) -> Poller:
        """Return a poller for a descriptor, and for processes that have ended."""
        poll = select.poll()
        for watched in (descriptor, *([] if self._launcher is None else [self._launcher.fileno()])):
            poll.register(watched, select.POLLIN)
        return poll

    def watch(self, descriptor: int) -> None:
        """Have :meth:`wait` return also while a descriptor is readable. The caller must read it."""
        self._waiting.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        self._waiting.unwatch(descriptor)

    def signal(self, worker: Sender, signum: int, alone: bool) -> None:
        """Send a signal to a worker that is still running, alone or with its process group."""
        if self._launcher is not None:
            self._launcher.signal(self._handle(worker), signum, alone)

    def stack(self, worker: Sender) -> str:
        """Request the Python stack of a worker and wait for it; empty if the worker cannot write one."""
        if self._stacks is None:
            return ""
        self._stacks.clear()
        self.signal(worker, STACK_SIGNAL, alone=True)
        return self._stacks.read(self.pid(worker))

    def pid(self, worker: Sender) -> int:
        """Return the process id of a worker, or -1 until it is known."""
        return -1 if self._launcher is None else self._launcher.pid(self._handle(worker))

    def alive(self) -> int:
        """Return the number of running workers."""
        return len(self._launcher.running) if self._launcher is not None else 0

    def close(self, timeout_s: float) -> list[Arrived]:
        """End every worker, and kill those that have not ended by the limit in seconds. Idempotent.

        Returns:
            The events until then.
        """
        launcher, events = self._launcher, list[Arrived]()
        try:
            if launcher is not None:
                events += self._wait_for_ends(timeout_s)
                for handle in launcher.running:
                    launcher.signal(handle, signal.SIGKILL)
                events += self._wait_for_ends(KILL_TIMEOUT_S)
                # ZeroMQ reads in a thread, which may be behind the news of the end.
                deadline = time.monotonic() + LAST_MESSAGES_S
                while self.are_missing is not None and self.are_missing(events) and remaining(deadline):
                    events += self.wait(remaining(deadline))
        finally:
            self._end_launcher()
            socket, self._socket = self._socket, None
            if socket is not None:
                self._waiting.unwatch(socket)
            stacks, self._stacks = self._stacks, None
            for closed in (socket, self._job, stacks):
                if closed is not None:
                    closed.close()
        return events

    def _received(self) -> list[Arrived]:
        events: list[Arrived] = []
        while self._socket is not None and (frames := self._socket.receive()) is not None:
            try:
                events.append(Received(*from_frames(frames)))
            except ProtocolError as error:
                # The sender does not answer any more, so it is killed and replaced at its time limit.
                _log.warning("a malformed message was dropped: %s", str(error))
        return events

    def _handle(self, worker: Sender) -> int:
        return next((handle for handle, sender in self._handles.items() if sender == worker), -1)

    def _open_launcher(self, launch: Launch) -> Launcher:
        """Return the launcher, or a new one if its fork server has died."""
        if self._launcher is None:
            environment = tuple(sorted(launch.environment.items()))
            self._launcher = Launcher(ForkServerSpec(launch.preload, environment, launch.threads, launch.spawn))
            self._waiting.watch(self._launcher.fileno())
        return self._launcher

    def _inheritance(self, worker: Sender, launch: Launch) -> tuple[dict[str, Any], tuple[Handle, ...]]:
        """Return the arguments and handles of a new process."""
        if self._socket is None:
            check_free(DESCRIPTORS)
            self._socket = DriverSocket()
            self._waiting.watch(self._socket)
        if self._job is None or launch.job is not self._pickled:
            # Workers that have started keep the former job.
            if self._job is not None:
                self._job.close()
            self._job, self._pickled = SharedMemory(len(launch.job)), launch.job
            with self._job.map() as mapping:
                mapping[:] = launch.job
        arguments: dict[str, Any] = {"worker": worker.worker, "generation": worker.generation, "driver": os.getpid()}
        if self._has_script:
            arguments["settings"] = settings_of_script("torch" in launch.preload)
        listening = self._socket.open(*worker, self._open_launcher(launch).folder)
        own = (listening, launch.memory, self._job.handle, self._stack_pipe().handle)
        handles = own + launch.handles
        if (wake_up := self._wake_ups.get(worker)) is not None:
            handles += wake_up.inherited
        return arguments, handles

    def _stack_pipe(self) -> StackPipe:
        if self._stacks is None:
            self._stacks = StackPipe()
        return self._stacks

    def _end_launcher(self) -> None:
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            self._waiting.unwatch(launcher.fileno())
            launcher.close()

    def _wait_for_ends(self, timeout_s: float) -> list[Arrived]:
        deadline, events = time.monotonic() + timeout_s, list[Arrived]()
        while self.alive() and remaining(deadline):
            events += self.wait(remaining(deadline))
        return events
