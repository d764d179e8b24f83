"""Rollouts on their way from hosts into the pool's slots."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from parenv.errors import ProtocolError
from parenv.memory.maps import SlotMap
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Commit, Credit, Layout
from parenv.remote.checks import check_commit
from parenv.remote.host_messages import Chunks, SlotPlan
from parenv.remote.slot_transfer import SlotTransfer


@dataclass
class _Delivery:
    """The rollout of a credit: where it goes, and how many bytes of it have come."""

    slot: int
    received: int = 0


class Deliveries:
    """What workers on hosts have been given credits for, until they commit it.

    Args:
        slots: of the pool.
        first_worker: the first worker that is on a host.
    """

    def __init__(self, slots: SlotMap, first_worker: int) -> None:
        self._slots = slots
        self._transfers = {worker: SlotTransfer(slots, worker) for worker in range(first_worker, len(slots.shares))}
        self._slot_bytes = max((one.layout.total_bytes for one in self._transfers.values()), default=0)
        self._expected: defaultdict[Sender, dict[int, _Delivery]] = defaultdict(dict)

    def plan(self, worker: int, layout: Layout) -> tuple[SlotPlan, Layout]:
        """Where rollouts of a worker lie on its host: for the host, and for the worker."""
        transfer = self._transfers[worker]
        plan = SlotPlan(
            offset=layout.slots_offset + self._slot_there(worker, 0) * self._slot_bytes,
            slot_bytes=self._slot_bytes,
            count=self._slots.credits,
            fixed_bytes=transfer.layout.reserved_bytes,
            ends=transfer.ends,
        )
        envs = self._slots.shares[worker]
        alone = replace(layout, slot_envs=envs, slot_workers=1, first_column=0, position=0)
        return plan, replace(alone, slot_bytes=self._slot_bytes)

    def expect(self, worker: Sender, credit: Credit) -> Credit:
        """The credit as the worker on its host must see it; its rollout is accepted from now on."""
        self._expected[worker][credit.sequence] = _Delivery(credit.slot)
        return replace(credit, slot=self._slot_there(worker.worker, credit.sequence))

    def write(self, worker: Sender, message: Chunks) -> None:
        """Put chunks where they belong.

        Raises:
            ProtocolError: there is no such credit, or a chunk does not fit.
        """
        delivery = self._delivery(worker, message.sequence)
        for offset, data in message.chunks:
            self._transfers[worker.worker].write(delivery.slot, offset, data)
            delivery.received += data.nbytes

    def finish(self, worker: Sender, commit: Commit) -> None:
        """A rollout is complete: from now on nothing is written there any more.

        Raises:
            ProtocolError: there is no such credit, one before it is missing, or it is not complete.
        """
        delivery = self._delivery(worker, commit.sequence)
        oldest = next(iter(self._expected[worker]))
        if oldest != commit.sequence:
            raise ProtocolError(f"a worker commits credit {commit.sequence}, but not credit {oldest} before it")
        num_ends = self._transfers[worker.worker].finish(delivery.slot, commit.sequence, delivery.received)
        check_commit(commit, self._slots.spec, self._slots.shares[worker.worker], num_ends)
        del self._expected[worker][commit.sequence]

    def forget(self, worker: Sender) -> None:
        """Take nothing more from a worker that has ended."""
        self._expected.pop(worker, None)

    def _delivery(self, worker: Sender, sequence: int) -> _Delivery:
        delivery = self._expected[worker].get(sequence)
        if delivery is None:
            raise ProtocolError(f"worker {worker.worker} has no credit {sequence}")
        return delivery

    def _slot_there(self, worker: int, sequence: int) -> int:
        """A worker's credits are contiguous, and the rollout before the last ``credits`` has arrived."""
        return worker * self._slots.credits + sequence % self._slots.credits
