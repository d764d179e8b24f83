"""Placement of workers on hosts, and of some on this machine if the user asks for it."""

from __future__ import annotations

import logging
import os
import platform
import signal
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.errors import ProtocolError
from parenv.memory.maps import AnyWeights, SlotMap, StepBufferMap
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot
from parenv.options import RayPlacement, RemotePlacement, WorkerOptions
from parenv.placement.base import Arrived, Ended, Launch, Notifier, Received, Traffic, drained
from parenv.placement.local import LocalPlacement
from parenv.process.stack_pipe import STACK_SIGNAL, STACK_TIMEOUT_S
from parenv.process.wake_up import Poller, WakeUp, WakeUps
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Message
from parenv.remote import host_messages as wire
from parenv.remote.exchange import Exchange, take_status
from parenv.remote.host_scheduler import HostScheduler
from parenv.remote.net.connections import Refusals
from parenv.remote.net.curve import HostListener
from parenv.remote.net.host_keys import AllowList, ephemeral_keys, read_driver_keys
from parenv.remote.ray import RayHosts
from parenv.remote.step_buffers import HostNotifier, HostsPoller
from parenv.transport.waiting import remaining

PROBE_S = 0.5
LINGER_S = 5.0
MAX_MESSAGES_AT_ONCE = 64
_log = logging.getLogger("parenv")


class _Host(NamedTuple):
    """A host that has joined: the name of its key, and its description in messages."""

    key: str
    words: str


class HostsPlacement:
    """Places workers on hosts as these join, and copies their data to the memory of the main process.

    Args:
        listener: Listener for hosts.
        placing: The user's placement.
        weights: Weights of the policy, or ``None``.
        provider: Starts the hosts. ``None``: the user starts them.
    """

    def __init__(
        self, listener: HostListener, placing: RemotePlacement, weights: AnyWeights, provider: RayHosts | None
    ) -> None:
        self.silence_s = placing.silence_s
        self.are_missing: Callable[[Sequence[Arrived]], bool] | None = None
        self._provider = provider
        self._listener, self._num_local = listener, placing.num_local
        self._exchange = Exchange(placing, weights)
        self._local = LocalPlacement(beside=listener)
        self._scheduler = HostScheduler()
        self._present: dict[int, Sender] = {}
        self._hosts: dict[bytes, _Host] = {}
        self._pids: dict[Sender, int] = {}
        self._events: deque[Arrived] = deque()
        self._stacks: dict[Sender, str] = {}
        self._refusals = Refusals()
        self._sent = self._received = 0
        self._next_probe = 0.0
        self._connections_ended = 0
        self._launch: Launch | None = None
        self._head: Any = None
        self._closed = False

    def start(self, launch: Launch, workers: Sequence[Sender]) -> None:
        """Start workers as soon as hosts have room for them. Returns at once."""
        if self._launch is None:
            # SharedMemory closes its descriptor, so it needs one of its own.
            self._head = SharedMemory(fd=os.dup(launch.memory)).map()
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
        """Set the location of the rollout slots, before workers get it."""
        self._exchange.lay_out(slots)

    def wake_up(self, worker: int, wake_ups: WakeUps) -> Notifier:
        """Create the wake-up of the next process of a worker, on this machine or on a host."""
        self._exchange.step_buffers.used = True
        if worker < self._num_local:
            return self._local.wake_up(worker, wake_ups)
        return HostNotifier(partial(self._request, worker))

    def lay_out_step_buffer(self, step_buffer: StepBufferMap) -> None:
        """Set the location of the step buffer, before workers get it.

        Raises:
            ConfigurationError: A row is larger than a message may be.
        """
        self._exchange.step_buffers.lay_out(step_buffer)

    def poller(self, descriptor: int) -> Poller:
        """Create a poller for a descriptor and for hosts."""
        return HostsPoller(self.wait, self._events, self._local, descriptor)

    def send(self, to: Sender, message: Message) -> None:
        """Send a message to a worker. If it is gone, the message is dropped, and :meth:`wait` reports the end."""
        if to.worker < self._num_local:
            self._local.send(to, message)
            return
        host = self._scheduler.host_of(to)
        if host is None:
            return
        for part, about in self._exchange.outgoing(host, to, message):
            self._tell(host, part, about)

    def wait(self, timeout_s: float) -> list[Arrived]:
        """Return all events, after waiting for the first one up to the limit."""
        patience_s = 0.0 if self._events else min(timeout_s, PROBE_S)
        self._events.extend(self._local.wait(patience_s))
        self._hear()
        self._probe()
        return drained(self._events)

    def notified_by(self, wake_up: WakeUp) -> None:
        """Have :meth:`wait` return also when this wake-up is notified."""
        self._local.notified_by(wake_up)

    def signal(self, worker: Sender, signum: int, alone: bool) -> None:
        """Send a signal to a worker, and to its children unless ``alone``. Does nothing if the worker is gone."""
        if worker.worker < self._num_local:
            self._local.signal(worker, signum, alone)
            return
        host = self._scheduler.host_of(worker)
        if host is not None:
            self._tell(host, wire.Signal(int(signum), int(alone)), worker)
        elif self._scheduler.is_waiting(worker) and signum == signal.SIGKILL:
            # A worker without a host has no process whose end could be reported later.
            self._scheduler.ended(worker)
            self._events.append(Ended(worker, -1, None, signal.SIGKILL, ""))

    def expel(self, worker: Sender, why: str, if_room: bool = False) -> bool:
        """Drop the host of a worker. Returns whether this was done."""
        host = self._scheduler.host_of(worker)
        if host is None or (if_room and not self._scheduler.could_leave(host)):
            return False
        self._drop(host, self._hosts[host].key, why)
        return True

    def stack(self, worker: Sender) -> str:
        """Wait for the Python stack of a worker. Returns an empty text without one."""
        if worker.worker < self._num_local:
            return self._local.stack(worker)
        self._stacks.pop(worker, None)
        self.signal(worker, STACK_SIGNAL, alone=True)
        # The main process must not wait long for a host that does not answer.
        deadline = time.monotonic() + 2.0 * min(STACK_TIMEOUT_S, self.silence_s)
        while worker not in self._stacks and self._scheduler.host_of(worker) is not None and remaining(deadline):
            self._listener.wait(remaining(deadline))
            self._hear()
        return self._stacks.pop(worker, "")

    def pid(self, worker: Sender) -> int:
        """Return the process id of a worker on its machine, or -1 while it is unknown."""
        if worker.worker < self._num_local:
            return self._local.pid(worker)
        return self._pids.get(worker, -1)

    def alive(self) -> int:
        """Return the number of workers that run."""
        return len(self._pids) + self._local.alive()

    def traffic(self) -> Traffic:
        """Return the traffic with hosts."""
        refused = dict(self._refusals.counts + Counter(self._listener.refusals))
        return Traffic(self._sent, self._received, len(self._hosts), refused)

    def problems(self) -> list[str]:
        """Return the obstacles to the start of workers, one sentence each."""
        found = [] if self._provider is None else self._provider.problems(len(self._hosts))
        address = self._listener.address.replace("//0.0.0.0:", f"//{platform.node()}:")
        if self._hosts or self._provider is not None:
            return found or [f"Hosts that have joined at {address}: {len(self._hosts)}"]
        command = f"parenv worker --connect {address} --key HOST.key"
        return [f"No host has joined at {address}. Run `{command}` on each host"]

    def close(self, timeout_s: float) -> list[Arrived]:
        """Wait for the end of all workers up to the limit, then kill the others. Idempotent."""
        if self._closed:
            return []
        self._closed = True
        deadline, events = time.monotonic() + timeout_s, list[Arrived]()
        try:
            while self.alive() and remaining(deadline):
                events += self.wait(remaining(deadline))
            for host in list(self._hosts):
                self._tell(host, wire.Goodbye())
            # Closing the listener with unread messages would reset the connections, and the goodbye could be lost.
            deadline = time.monotonic() + LINGER_S
            while self._hosts and remaining(deadline):
                self.wait(remaining(deadline))
        finally:
            events += self._local.close(0.0)
            if self._provider is not None:
                self._provider.close(LINGER_S)
            self._listener.close()
        return events

    def _request(self, worker: int) -> None:
        """Send requests to a worker on a host, unless the host is gone."""
        host = self._scheduler.host_of(self._present[worker])
        if host is not None:
            self._tell(host, self._exchange.step_buffers.requests(worker), self._present[worker])

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
        """Send something to all hosts, to find those that cannot be reached."""
        now, ended = time.monotonic(), self._listener.admission.ended
        if now >= self._next_probe or ended != self._connections_ended:
            self._next_probe, self._connections_ended = now + PROBE_S, ended
            # A message that cannot be sent removes its host from the dict.
            for host in list(self._hosts):
                self._tell(host, wire.Heartbeat([], b""))
            if self._provider is not None and not self._closed:
                self._provider.tend()

    def _lose(self, host: bytes, why: str) -> None:
        # A failed message, a goodbye and a dismissal may all report the loss of the same host.
        if (gone := self._hosts.pop(host, None)) is None:
            return
        lost = self._scheduler.leave(host)
        self._exchange.forget_host(host)
        if not self._closed:
            _log.warning("%s is lost with %d workers: %s", gone.words, len(lost), why)
        for worker in lost:
            pid = self._forget(worker)
            self._events.append(Ended(worker, pid, None, None, "", f"{gone.words} is gone: {why}"))

    def _forget(self, worker: Sender) -> int:
        """Drop the state of a worker that has ended. Returns its process id."""
        self._exchange.forget_worker(worker)
        return self._pids.pop(worker, -1)

    def _hear(self) -> None:
        # Hosts that send without a pause must not keep the main process here.
        for _ in range(MAX_MESSAGES_AT_ONCE):
            if (received := self._listener.receive()) is None:
                return
            host, key, frames = received
            self._received += sum(map(len, frames))
            try:
                self._obey(host, key, *from_frames(frames, of_host=True))
            except Exception as error:  # No message of a host may end the run.
                # As text: a handler that kept the exception would keep this placement.
                _log.debug("a message of host %s:\n%s", key, "".join(traceback.format_exception(error)))
                what = str(error) if isinstance(error, ProtocolError) else f"{type(error).__name__}: {error}"
                self._drop(host, key, f"it sent a message that is not allowed: {what}")

    def _drop(self, host: bytes, key: str, why: str) -> None:
        """End a host, its connection and all its workers: it cannot join, breaks the protocol or does not work."""
        self._refusals.note("dropped", key, f"host {key} is dropped: {why}")
        self._listener.dismiss(host, to_frames(wire.HOST, wire.Refuse(why)))
        self._lose(host, why)

    def _welcome(self, host: bytes, key: str, join: wire.Join) -> None:
        if why := wire.disagreement(join.versions):
            self._drop(host, key, why)
            return
        launch = self._launch
        if launch is None or self._closed:
            return
        self._hosts[host] = _Host(key, f"host {key!r} (machine {join.name!r}, pid {join.pid})")
        self._tell(host, self._exchange.welcome(launch, len(self._head)))
        if host not in self._hosts:  # The host was gone before the message could be sent.
            return
        _log.info("%s has joined with room for %d workers", self._hosts[host].words, join.capacity)
        self._scheduler.join(host, join.capacity)
        self._place()

    def _obey(self, host: bytes, key: str, sender: Sender, message: Any) -> None:
        if isinstance(message, wire.Join):
            self._welcome(host, key, message)
        elif host not in self._hosts:
            pass  # It was lost, and has left messages.
        elif isinstance(message, wire.Heartbeat):
            take_status(self._head, {worker.worker for worker in self._scheduler.workers_of(host)}, message)
        elif isinstance(message, wire.Goodbye):
            self._lose(host, "it was told to leave")
        elif self._scheduler.host_of(sender) != host:
            pass  # The worker has been replaced, or has moved to another host.
        elif isinstance(message, wire.Started):
            self._pids[sender] = message.pid
        elif isinstance(message, wire.Gone):
            self._scheduler.ended(sender)
            self._forget(sender)
            self._events.append(Ended(sender, message.pid, message.exit_code, message.signal, message.refused))
            self._place()
        elif isinstance(message, wire.Stack):
            self._stacks[sender] = message.text
        elif (taken := self._exchange.take(self._head, sender, message)) is not None:
            self._events.append(Received(sender, taken))


HOST_ENTRY = "parenv.remote.host:serve"


def remote_placement(
    placing: RemotePlacement | RayPlacement, weights: AnyWeights, options: WorkerOptions
) -> HostsPlacement:
    """Listen for hosts, and start hosts of Ray if a placement asks for them.

    Raises:
        ConfigurationError: A key cannot be read, the address is not available, or Ray refuses the resources.
    """
    hosts = None
    if isinstance(placing, RemotePlacement):
        keys, allowed = read_driver_keys(placing.key), AllowList(placing.hosts)
    else:
        hosts = RayHosts(placing, HOST_ENTRY, options.restart)
        keys, key = ephemeral_keys()
        placing, allowed = RemotePlacement(hosts.listen, key="", hosts=()), AllowList([key.public.decode()])
    listener = HostListener(
        placing.listen,
        keys,
        allowed,
        max_message_bytes=placing.max_message_bytes,
        max_connections=placing.max_connections,
        silence_s=placing.silence_s,
    )
    placement = HostsPlacement(listener, placing, weights, hosts)
    if hosts is not None:
        try:
            hosts.start(listener.address, key)
        except BaseException:
            placement.close(0.0)
            raise
    return placement
