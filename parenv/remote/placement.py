"""Workers on other machines, through a worker host on each, and perhaps some on this one."""

from __future__ import annotations

import logging
import os
import platform
import signal
import time
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from parenv.errors import ProtocolError
from parenv.memory.maps import AnyWeights, BoardMap, SlotMap
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot
from parenv.options import RemotePlacement
from parenv.placement.base import Ended, Event, Launch, Notifier, Poller, Received, Traffic, drained
from parenv.placement.local import LocalPlacement
from parenv.process.stack_pipe import STACK_SIGNAL, STACK_TIMEOUT_S
from parenv.protocol.forms import harmless
from parenv.protocol.frames import Sender, to_frames
from parenv.protocol.messages import Message
from parenv.remote import host_messages as wire
from parenv.remote.checks import decode
from parenv.remote.exchange import Exchange, take_status
from parenv.remote.host_scheduler import HostScheduler
from parenv.remote.net.curve import HostListener
from parenv.remote.net.refusals import Refusals
from parenv.remote.ray import RayHosts
from parenv.remote.step_buffers import HostNotifier, HostsPoller
from parenv.transport.waiting import remaining

PROBE_S = 0.5
LINGER_S = 5.0
MAX_NAME = 253
MAX_MESSAGES_AT_ONCE = 64
MAX_OFFENCES = 3
"""Number of offences after which the hosts with a key are barred."""
MAX_REASON = 300
_log = logging.getLogger("parenv")


class _Host(NamedTuple):
    """A host that has joined.

    Args:
        key: name of its key.
        words: what it is called in messages.
    """

    key: str
    words: str


class HostsPlacement:
    """Places workers on hosts as these come, and takes over what they write.

    Args:
        listener: where hosts join.
        placing: the user's.
        weights: the policy's weights, or ``None``.
        provider: starts the hosts; ``None``: the user does.
    """

    def __init__(
        self, listener: HostListener, placing: RemotePlacement, weights: AnyWeights, provider: RayHosts | None
    ) -> None:
        self.silence_s = placing.silence_s
        self._provider = provider
        self._listener, self._num_local = listener, placing.num_local
        self._max_message_bytes = placing.max_message_bytes
        self._exchange = Exchange(placing, weights)
        self._local = LocalPlacement(beside=listener)
        self._scheduler = HostScheduler()
        self._present: dict[int, Sender] = {}
        self._hosts: dict[bytes, _Host] = {}
        self._pids: dict[Sender, int] = {}
        self._events: deque[Event] = deque()
        self._stacks: dict[Sender, str] = {}
        self._refusals = Refusals()
        self._offences: Counter[str] = Counter()
        self._sent = self._received = 0
        self._next_probe = 0.0
        self._connections_ended = 0
        self._launch: Launch | None = None
        self._head: Any = None
        self._closed = False

    def start(self, launch: Launch, workers: Sequence[Sender]) -> None:
        """Start workers, as soon as there is room for them; returns at once."""
        if self._launch is None:
            self._head = SharedMemory(fd=os.dup(launch.memory_fd)).map()
        self._launch = launch
        self._present.update((worker.worker, worker) for worker in workers)
        here = [worker for worker in workers if worker.worker < self._num_local]
        if here:
            self._local.start(launch, here)
        for worker in workers:
            if worker not in here:
                self._scheduler.want(worker)
                StatusSlot(self._head, worker.worker).begin("waiting for a host")
        self._place()

    def lay_out(self, slots: SlotMap) -> None:
        """Hear where rollouts lie, before any worker is told."""
        self._exchange.lay_out(slots)

    def wake_up(self, worker: int) -> Notifier:
        """Make the wake-up of the next process of a worker, on this machine or for its host, wherever that will be."""
        self._exchange.step_buffers.used = True
        if worker < self._num_local:
            return self._local.wake_up(worker)
        return HostNotifier(partial(self._request, worker))

    def lay_out_board(self, step_buffer: BoardMap) -> None:
        """Hear where the rows of a vector env lie, before any worker is told.

        Raises:
            ConfigurationError: a row has more bytes than a host may send in one message.
        """
        self._exchange.step_buffers.lay_out(step_buffer)

    def poller(self, descriptor: int) -> Poller:
        """What waits for a descriptor, and for hosts."""
        return HostsPoller(self.wait, self._events, self._local, descriptor)

    def send(self, to: Sender, message: Message) -> None:
        """Send a message; one to a worker that is gone is dropped, and its end reported by :meth:`wait`."""
        if to.worker < self._num_local:
            self._local.send(to, message)
            return
        host = self._scheduler.host_of(to)
        if host is None:
            return
        for part, about in self._exchange.outgoing(host, to, message):
            self._tell(host, part, about)

    def wait(self, timeout_s: float) -> list[Event]:
        """Everything that has happened; waits up to the limit for the first thing to happen."""
        patience_s = 0.0 if self._events else min(timeout_s, PROBE_S)
        self._events.extend(self._local.wait(patience_s))
        self._hear()
        self._probe()
        return drained(self._events)

    def signal(self, worker: Sender, signum: int, alone: bool) -> None:
        """Send a signal to a worker, alone or with all that it has started; one that is gone is let be."""
        if worker.worker < self._num_local:
            self._local.signal(worker, signum, alone)
            return
        host = self._scheduler.host_of(worker)
        if host is not None:
            self._tell(host, wire.Signal(int(signum), int(alone)), worker)
        elif self._scheduler.is_waiting(worker) and signum == signal.SIGKILL:
            self._scheduler.ended(worker)
            self._events.append(Ended(worker, -1, None, signal.SIGKILL, ""))

    def expel(self, worker: Sender, why: str, if_room: bool = False) -> bool:
        """End the host of a worker, with all its workers, because of what the host does."""
        host = self._scheduler.host_of(worker)
        if host is None or (if_room and not self._scheduler.could_leave(host)):
            return False
        key = self._hosts[host].key
        self._offend("misbehaved", key, f"is expelled: {why}")
        self._dismiss(host, f"the driver ends this host: {why}", why)
        return True

    def stack(self, worker: Sender) -> str:
        """What a worker is doing, as a Python stack; empty if it can give none. Waits for it."""
        if worker.worker < self._num_local:
            return self._local.stack(worker)
        self._stacks.pop(worker, None)
        self.signal(worker, STACK_SIGNAL, alone=True)
        # A host that does not answer must not keep the main process waiting for long.
        deadline = time.monotonic() + 2.0 * min(STACK_TIMEOUT_S, self.silence_s)
        while worker not in self._stacks and self._scheduler.host_of(worker) is not None and remaining(deadline):
            self._listener.wait(remaining(deadline))
            self._hear()
        return self._stacks.pop(worker, "")

    def pid(self, worker: Sender) -> int:
        """Process id of a worker on its own machine, or -1 while it is not known."""
        if worker.worker < self._num_local:
            return self._local.pid(worker)
        return self._pids.get(worker, -1)

    def alive(self) -> int:
        """How many workers run."""
        return len(self._pids) + self._local.alive()

    def traffic(self) -> Traffic:
        """What has crossed the network."""
        refused = dict(self._refusals.counts + Counter(self._listener.refusals))
        return Traffic(self._sent, self._received, len(self._hosts), refused)

    def problems(self) -> list[str]:
        """What keeps workers from being started, a sentence each."""
        found = [] if self._provider is None else self._provider.problems(len(self._hosts))
        address = self._listener.address.replace("//0.0.0.0:", f"//{platform.node()}:")
        if self._hosts or self._provider is not None:
            return found or [f"Hosts that have joined at {address}: {len(self._hosts)}"]
        command = f"parenv worker --connect {address} --key HOST.key"
        return [f"No host has joined at {address}. Run `{command}` on each host"]

    def close(self, timeout_s: float) -> None:
        """End every worker: by themselves within the limit, or by force after it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + timeout_s
        try:
            while self.alive() and remaining(deadline):
                self.wait(remaining(deadline))
            for host in list(self._hosts):
                self._tell(host, wire.Goodbye())
            # Closed at once, with messages of hosts still unread, the connections would be reset and this not arrive.
            deadline = time.monotonic() + LINGER_S
            while self._hosts and remaining(deadline):
                self.wait(remaining(deadline))
        finally:
            self._local.close(0.0)
            if self._provider is not None:
                self._provider.close(LINGER_S)
            self._listener.close(LINGER_S)

    def _request(self, worker: int, number: int) -> None:
        """Have a worker on a host see what is requested of it, and ring its wake-up; of one that is gone, nothing."""
        host = self._scheduler.host_of(self._present[worker])
        if host is not None:
            self._tell(host, self._exchange.step_buffers.requests(worker, number), self._present[worker])

    def _place(self) -> None:
        for worker, host in [] if self._closed else self._scheduler.place():
            StatusSlot(self._head, worker.worker).begin("starting")
            self._tell(host, wire.Start(), worker)

    def _tell(self, host: bytes, message: wire.AnyMessage, about: Sender = wire.HOST) -> None:
        frames = to_frames(about, message)
        if self._listener.send(host, frames):
            self._sent += sum(map(len, frames))
        else:
            self._lose(host, "the connection to it was lost")

    def _probe(self) -> None:
        """A host that cannot be reached is known by what cannot be sent to it."""
        now, ended = time.monotonic(), self._listener.admission.ended
        if now >= self._next_probe or ended != self._connections_ended:
            self._next_probe, self._connections_ended = now + PROBE_S, ended
            for host in list(self._hosts):
                self._tell(host, wire.Heartbeat([], b""))
            if self._provider is not None and not self._closed:
                self._provider.tend()

    def _lose(self, host: bytes, why: str) -> None:
        if (gone := self._hosts.pop(host, None)) is None:
            return
        lost = self._scheduler.leave(host)
        self._exchange.forget_host(host)
        if not self._closed:
            _log.warning("%s is gone with %d workers: %s", gone.words, len(lost), why)
        for worker in lost:
            pid = self._forget(worker)
            self._events.append(Ended(worker, pid, None, None, "", f"{gone.words} is gone: {why}"))

    def _forget(self, worker: Sender) -> int:
        """Take nothing more from a worker that has ended; its process id."""
        self._exchange.forget_worker(worker)
        return self._pids.pop(worker, -1)

    def _hear(self) -> None:
        messages, most_bytes = MAX_MESSAGES_AT_ONCE, wire.max_head_bytes(self._max_message_bytes)
        while messages > 0 and most_bytes >= 0 and (received := self._listener.receive()) is not None:
            host, name, frames = received
            messages, most_bytes = messages - 1, most_bytes - len(frames[0])
            self._received += sum(map(len, frames))
            if self._offences[name] >= MAX_OFFENCES:
                barred = f"hosts with this key have sent what they may not {MAX_OFFENCES} times"
                self._refuse("barred", name, f"cannot join: {barred}")
                self._dismiss(host, barred, "it sent what it may not")
                continue
            # One that has not joined says no more than that it wants to.
            if host not in self._hosts and len(frames[0]) > wire.max_head_bytes(0):
                self._refuse("has not joined", name, "speaks, but has not joined")
                continue
            try:
                sender, message = decode(frames, self._max_message_bytes)
                if host in self._hosts:
                    self._obey(host, name, sender, message)
                elif isinstance(message, wire.Join):
                    self._welcome(host, name, message)
                else:
                    self._refuse("has not joined", name, "speaks, but has not joined")
            except Exception as error:
                self._expel(host, name, error)

    def _refuse(self, reason: str, key: str, why: str) -> None:
        """Count and log what is refused of a host; ``why`` may quote what the host has sent."""
        shown = harmless(" ".join(why[: 2 * MAX_REASON].split()))[:MAX_REASON]
        self._refusals.note(reason, key, f"host {key} {shown}")

    def _offend(self, reason: str, key: str, why: str) -> None:
        """Refuse what no correct host sends, see :data:`MAX_OFFENCES`."""
        self._refuse(reason, key, why)
        self._offences[key] += 1

    def _expel(self, host: bytes, name: str, error: Exception) -> None:
        """End a host over whose message something was raised; whatever that is, it must not end the run."""
        why = str(error) if isinstance(error, ProtocolError) else f"{type(error).__name__}: {error}"
        if not isinstance(error, ProtocolError):
            _log.debug("a message of host %s:\n%s", name, "".join(traceback.format_exception(error)))
        self._offend("malformed message", name, f"sent what it may not: {why}")
        self._dismiss(host, f"the driver cannot accept what it was sent: {why}", "it sent what it may not")

    def _dismiss(self, host: bytes, refusal: str, why: str) -> None:
        """End a host and its connection, and hear nothing more of it."""
        self._listener.dismiss(host, to_frames(wire.HOST, wire.Refuse(refusal)))
        self._lose(host, why)

    def _welcome(self, host: bytes, name: str, join: wire.Join) -> None:
        roomless = "a host needs room for at least one worker" if join.capacity < 1 else ""
        if why := wire.disagreement(join.versions) or roomless:
            self._refuse("version", name, f"cannot join: {why}")
            self._tell(host, wire.Refuse(why))
            return
        launch = self._launch
        if launch is None or self._closed:
            return
        self._hosts[host] = _Host(name, f"host {name!r} (machine {join.name[:MAX_NAME]!r}, pid {join.pid})")
        self._tell(host, self._exchange.welcome(launch, len(self._head)))
        if host not in self._hosts:  # It was gone before it could be told.
            return
        _log.info("%s has joined with room for %d workers", self._hosts[host].words, join.capacity)
        self._scheduler.join(host, join.capacity)
        self._place()

    def _obey(self, host: bytes, name: str, sender: Sender, message: Any) -> None:
        if isinstance(message, wire.Heartbeat):
            take_status(self._head, {worker.worker for worker in self._scheduler.workers_of(host)}, message)
        elif isinstance(message, wire.Goodbye):
            self._lose(host, "it was told to leave")
        elif self._scheduler.host_of(sender) != host:
            self._refuse("old generation", name, f"speaks for {sender}, which it does not have")
        elif isinstance(message, wire.Started):
            self._pids[sender] = message.pid
        elif isinstance(message, wire.Gone):
            self._scheduler.ended(sender)
            self._forget(sender)
            self._events.append(Ended(sender, message.pid, message.exit_code, message.signal, message.refused))
            self._place()
        elif isinstance(message, wire.Stack):
            self._stacks[sender] = message.text
        elif isinstance(message, wire.HOST_KINDS) and not isinstance(message, wire.Chunks | wire.Answers):
            raise ProtocolError(f"a host may not say {type(message).__name__}")
        elif (taken := self._exchange.take(self._head, sender, message)) is not None:
            self._events.append(Received(sender, taken))
