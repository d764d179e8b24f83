"""Data exchanged with workers on hosts beside messages: weights, rollouts and rows of step buffers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.errors import ProtocolError
from parenv.memory.maps import AnyWeights, SlotMap
from parenv.memory.status_slot import STATUS_SLOT_BYTES, take_status_slot
from parenv.options import RemotePlacement
from parenv.placement.base import Launch
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Call, Commit, Credit, Layout, Logged, Message, Rows
from parenv.remote.host_messages import CHUNK_BYTES, HOST, Answers, AnyMessage, Chunks, Heartbeat, Welcome
from parenv.remote.step_buffers import StepBuffers
from parenv.remote.transfer import RolloutTransfer, chunks_of


class Exchange:
    """Adds data to messages for workers on hosts, and writes the data of these workers to the driver's memory.

    Args:
        placing: The user's placement.
        weights: Weights of the policy, or ``None``.
    """

    def __init__(self, placing: RemotePlacement, weights: AnyWeights) -> None:
        self._placing, self._weights = placing, weights
        self.step_buffers = StepBuffers(placing.num_local, placing.max_message_bytes)
        self._transfers: dict[int, RolloutTransfer] = {}
        self._brought: dict[bytes, dict[Any, int]] = {}
        self._snapshots: dict[bytes, tuple[int, int]] = {}
        """By host, the version and the weight slot of its last snapshot."""

    def welcome(self, launch: Launch, head_bytes: int) -> Welcome:
        """Return the first message for a host that has joined.

        Args:
            launch: Data for every worker.
            head_bytes: Size of the driver's memory before the slots or the step buffer.
        """
        return Welcome(
            entry=launch.entry,
            job=launch.job,
            preload=list(launch.preload),
            environment=dict(launch.environment),
            threads=launch.threads,
            head_bytes=head_bytes,
            max_message_bytes=self._placing.max_message_bytes,
            wake_ups=int(self.step_buffers.used),
            spawn=int(launch.spawn),
        )

    def lay_out(self, slots: SlotMap) -> None:
        """Set the location of the rollout slots."""
        on_hosts = range(self._placing.num_local, len(slots.shares))
        self._transfers = {worker: RolloutTransfer(slots, worker) for worker in on_hosts}

    def outgoing(self, host: bytes, to: Sender, message: Message) -> Iterator[tuple[AnyMessage, Sender]]:
        """Yield the messages for a host that replace a message to one of its workers, each with its header."""
        if isinstance(message, Layout) and self._transfers:
            plan, message = self._transfers[to.worker].plan(message)
            yield plan, to
        elif isinstance(message, Credit) and self._transfers:
            yield from self._missing_weights(host, message.policy_version)
            message = self._transfers[to.worker].expect(message)
            version = message.policy_version, message.weights_slot
            # Messages to a host arrive in order, so an earlier credit has brought the snapshot.
            if self._snapshots.get(host) == version:
                message = replace(message, snapshot=b"")
            elif message.snapshot:
                self._snapshots[host] = version
        elif isinstance(message, Rows):
            yield self.step_buffers.rows[to.worker].plan, to
        elif isinstance(message, Call) and self.step_buffers.used:
            yield self.step_buffers.requests(to.worker), to
        elif isinstance(message, Call) and message.policy_version >= 0:
            yield from self._missing_weights(host, message.policy_version)
        yield message, to

    def take(self, head: Any, sender: Sender, message: Any) -> Any:
        """Write the data of a message of a worker to the driver's memory.

        Returns:
            Message for the crew, or ``None``.

        Raises:
            ProtocolError: The data exceed their place, or the host must not send such a message.
        """
        if isinstance(message, Logged):
            raise ProtocolError("a host must not send log records")
        if isinstance(message, Answers):
            return self.step_buffers.take(head, sender.worker, message)
        if isinstance(message, Chunks):
            return self._transfers[sender.worker].write(message)
        if isinstance(message, Commit):
            self._transfers[sender.worker].finish(message)
        return message

    def forget_worker(self, worker: Sender) -> None:
        """Drop the state of a worker that has ended."""
        if worker.worker in self._transfers:
            self._transfers[worker.worker].forget()

    def forget_host(self, host: bytes) -> None:
        """Drop the state of a host that is gone."""
        self._brought.pop(host, None)
        self._snapshots.pop(host, None)

    def _missing_weights(self, host: bytes, version: int) -> Iterator[tuple[AnyMessage, Sender]]:
        """Yield the weights of a version that the host does not have: they are sent once for all its workers."""
        brought = self._brought.setdefault(host, {})
        for place in () if self._weights is None else self._weights.needed(version):
            # A later version may be in the same place, so the version is compared too.
            if brought.get(place.key) != place.version:
                brought[place.key] = place.version
                for chunk in chunks_of(place.weights, place.slot, self._placing.weights, CHUNK_BYTES):
                    yield chunk, HOST


def take_status(head: Any, here: set[int], heartbeat: Heartbeat) -> None:
    """Write the status slots of a heartbeat to the driver's memory.

    Args:
        head: Memory of the driver.
        here: Indices of the workers on the host. Status slots of other workers are ignored.
        heartbeat: Message of the host.

    Raises:
        ProtocolError: The number of workers and of status slots differ.
    """
    workers = heartbeat.workers
    if len(heartbeat.status_slots) != STATUS_SLOT_BYTES * len(workers):
        raise ProtocolError("a heartbeat must have a status slot for each worker that it names")
    for i, worker in enumerate(workers):
        # A worker may have left the host while the heartbeat was on its way, and may run on another host now.
        if worker in here:
            status = heartbeat.status_slots[STATUS_SLOT_BYTES * i : STATUS_SLOT_BYTES * (i + 1)]
            take_status_slot(head, worker, status)
