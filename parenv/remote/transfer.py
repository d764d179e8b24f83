"""Transfer of rollouts from the memory of hosts into the slots of the pool, and of weights to hosts.

A worker on a host has its own slots there, without columns of other workers. The host sends the filled bytes in chunks.
If the slot of the pool has the same layout, the main process writes chunks directly into it. If several workers share a
slot, the main process assembles the rollout in a buffer first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenv.errors import ProtocolError
from parenv.memory.layout import ROLLOUT_FIELDS, Axes, Field, SlotLayout, part_of_slot, slot_layout
from parenv.memory.maps import SlotMap, WeightsMap
from parenv.options import WeightsEncoding
from parenv.protocol.messages import Commit, Credit, Layout
from parenv.remote.host_messages import Chunks, SlotPlan, Weights

Arrays = Mapping[tuple[str, Any], Any]


@dataclass
class _Delivery:
    """The rollout of a credit: its slot in the pool, and the number of bytes received."""

    slot: int
    received: int = 0


class RolloutTransfer:
    """The rollouts of one worker on a host, from the credit to the commit.

    Args:
        slots: Slots of the pool.
        worker: Index of the worker.

    Attributes:
        layout: Layout of the slots on the host.
        ends: For each group of rows, the offset of its number of episode ends, and ``[offset, bytes]`` of each field
            with one entry per episode end.
    """

    def __init__(self, slots: SlotMap, worker: int) -> None:
        self._slots, self._worker = slots, worker
        spec, self._num_envs = slots.spec, slots.shares[worker]
        self._groups = spec.groups
        self._lengths = [group.rollout_length for group in self._groups]
        self._rows = [self._num_envs * len(group.agents) for group in self._groups]
        self.layout = slot_layout(spec, self._num_envs, 1)
        self.ends = [_ends(fields, self.layout.reserved_bytes) for fields in self.layout.groups]
        self._slot_bytes = slot_layout(spec, max(slots.shares), 1).total_bytes
        self._position, self._first = (worker, sum(slots.shares[:worker])) if slots.together else (0, 0)
        self._beside: tuple[Any, Any] | None = None
        self._laid_out: dict[int, tuple[Any, Any]] = {}
        self._whole: SlotLayout | None = None
        if slots.together and len(slots.shares) > 1:
            # Workers share a slot, so data of a host is written to other memory until it is complete.
            self._whole = slot_layout(spec, sum(slots.shares), len(slots.shares))
            beside = np.zeros(self.layout.total_bytes, np.uint8)
            self._beside = beside, self.layout.arrays(beside)
        self._expected: dict[int, _Delivery] = {}

    def plan(self, layout: Layout) -> tuple[SlotPlan, Layout]:
        """Return the place of the worker's rollouts in the host's memory: for the host, and for the worker."""
        plan = SlotPlan(
            offset=layout.slots_offset + self._slot_there(0) * self._slot_bytes,
            slot_bytes=self._slot_bytes,
            count=self._slots.credits,
            fixed_bytes=self.layout.reserved_bytes,
            ends=self.ends,
        )
        alone = replace(layout, slot_envs=self._num_envs, slot_workers=1, first_column=0, position=0)
        return plan, replace(alone, slot_bytes=self._slot_bytes)

    def expect(self, credit: Credit) -> Credit:
        """Accept the rollout of a credit from now on. Returns the credit with the slot on the host."""
        self._expected[credit.sequence] = _Delivery(credit.slot)
        return replace(credit, slot=self._slot_there(credit.sequence))

    def write(self, message: Chunks) -> None:
        """Copy chunks into the slot.

        Raises:
            ProtocolError: The worker has no such credit, or a chunk does not fit into a slot.
        """
        delivery = self._delivery(message.sequence)
        to, _ = self._mine(delivery.slot)
        for offset, data in message.chunks:
            # numpy would take a negative offset as one from the end.
            if offset < 0 or offset + data.nbytes > self.layout.total_bytes:
                raise ProtocolError(f"a chunk must be within its slot, got {data.nbytes} bytes at offset {offset}")
            to[offset : offset + data.nbytes] = np.frombuffer(data, np.uint8)
            delivery.received += data.nbytes

    def finish(self, commit: Commit) -> None:
        """Check that the rollout of a commit is complete, and accept no more chunks of it.

        Raises:
            ProtocolError: The worker has no such credit, or has sent another number of bytes.
        """
        delivery = self._delivery(commit.sequence)
        _, mine = self._mine(delivery.slot)
        # The host has sent these counts, so they are checked before anything is sized by them.
        counts = [int(arrays["commits", 0]["num_ends"][0]) for arrays in mine]
        fits = all(0 <= counts[i] <= self._rows[i] * self._lengths[i] for i in range(len(counts)))
        expected = transfer_bytes(self.layout.reserved_bytes, self.ends, counts) if fits else -1
        if delivery.received != expected:
            raise ProtocolError(
                f"the rollout of credit {commit.sequence} with {sum(counts)} episode ends must have {expected} bytes, "
                f"got {delivery.received}"
            )
        if self._whole is not None:
            whole = self._slot(delivery.slot, self._whole)[1]
            for index, arrays in enumerate(mine):
                self._put_together(index, arrays, whole[index], counts[index])
        del self._expected[commit.sequence]

    def forget(self) -> None:
        """Accept nothing more from the worker: it has ended."""
        self._expected.clear()

    def _delivery(self, sequence: int) -> _Delivery:
        if sequence not in self._expected:
            raise ProtocolError(f"worker {self._worker} has no credit {sequence}")
        return self._expected[sequence]

    def _slot_there(self, sequence: int) -> int:
        """Return the slot of a credit on the host. The rollout of ``credits`` credits before has arrived."""
        return self._worker * self._slots.credits + sequence % self._slots.credits

    def _mine(self, slot: int) -> tuple[Any, Sequence[Arrays]]:
        """Return the bytes that chunks are written to, and the arrays over them."""
        return self._slot(slot, self.layout) if self._beside is None else self._beside

    def _slot(self, slot: int, layout: SlotLayout) -> tuple[Any, Any]:
        """Return the bytes and the arrays of a slot of the pool."""
        if slot not in self._laid_out:
            begin = self._slots.offset + slot * self._slots.slot_bytes
            there = np.frombuffer(self._slots.memory, np.uint8, self._slots.slot_bytes, begin)
            self._laid_out[slot] = there, layout.arrays(there)
        return self._laid_out[slot]

    def _put_together(self, index: int, mine: Arrays, whole: Arrays, count: int) -> None:
        first = self._first * len(self._groups[index].agents)
        part = part_of_slot(self._lengths[index], self._position, first, first + self._rows[index])
        for (name, key), values in mine.items():
            used = _used(name, count)
            whole[name, key][part[name]][:used] = values[:used]
        whole["ends", 0][part["ends"]]["column"][:count] += first


def _ends(fields: Sequence[Field], reserved_bytes: int) -> list[Any]:
    commits = next(field for field in fields if field.name == ("commits", 0))
    per_end = [[field.offset, field.row_bytes] for field in fields if field.offset >= reserved_bytes]
    return [commits.offset + np.dtype(commits.dtype).fields["num_ends"][1], per_end]  # type: ignore[index]


def transfer_bytes(fixed_bytes: int, ends: Sequence[Any], counts: Sequence[int]) -> int:
    """Return the size of a rollout with this number of episode ends in each group of rows, in bytes.

    >>> transfer_bytes(1000, [[64, [[1024, 32], [2048, 16]]]], [3])
    1144
    """
    sparse: int = sum(count * nbytes for count, (_, per_end) in zip(counts, ends, strict=True) for _, nbytes in per_end)
    return fixed_bytes + sparse


def in_chunks(memory: memoryview, parts: Sequence[tuple[int, int]], most: int) -> Iterator[list[Any]]:
    """Split parts of a memory into lists of ``[offset, bytes]``.

    Args:
        memory: Bytes of a slot.
        parts: Offset and size of each part, in bytes.
        most: Maximum size of all chunks in one list, in bytes.

    >>> lists = in_chunks(memoryview(bytes(99)), [(0, 5), (8, 4)], 4)
    >>> [[(offset, data.nbytes) for offset, data in chunks] for chunks in lists]
    [[(0, 4)], [(4, 1), (8, 3)], [(11, 1)]]
    """
    chunks: list[Any] = []
    room = most
    for begin, nbytes in parts:
        at, stop = begin, begin + nbytes
        while at < stop:
            taken = min(room, stop - at)
            chunks.append([at, memory[at : at + taken]])
            at, room = at + taken, room - taken
            if not room:
                yield chunks
                chunks, room = [], most
    if chunks:
        yield chunks


def _used(name: str, count: int) -> int | None:
    """Return the number of entries in use of a field, or ``None`` for all."""
    return count if ROLLOUT_FIELDS[name].axes is Axes.ENDS else None


def chunks_of(weights: WeightsMap, weights_slot: int, encoding: WeightsEncoding, chunk_bytes: int) -> Iterator[Weights]:
    """Yield the version in a weight slot in messages of up to ``chunk_bytes``. Exact chunks are views of the memory."""
    base = weights.offset + weights_slot * weights.nbytes
    for begin, stop, is_float32 in _parts(weights):
        rounds = is_float32 and encoding == "bfloat16"
        step = chunk_bytes * 2 if rounds else chunk_bytes
        for at in range(begin, stop, step):
            size = min(step, stop - at)
            data = memoryview(weights.memory)[base + at : base + at + size]
            if rounds:
                data = memoryview(to_bfloat16(np.frombuffer(data, "<f4"))).cast("B")
            yield Weights(base + at, "bfloat16" if rounds else "exact", data)


def _parts(weights: WeightsMap) -> Iterator[tuple[int, int, bool]]:
    """Yield the begin and end of each part of a version, and whether it holds float32 numbers. Parts may be empty."""
    done = 0
    for begin, stop in (*weights.float32, (weights.nbytes, weights.nbytes)):
        yield done, begin, False
        yield begin, stop, True
        done = stop


def write_chunk(memory: Any, chunk: Weights) -> None:
    """Write a chunk of weights to the memory of a host.

    Raises:
        ValueError: The chunk does not fit into the memory.
    """
    if chunk.encoding == "bfloat16":
        numbers = from_bfloat16(np.frombuffer(chunk.data, "<u2"))
        np.frombuffer(memory, "<f4", numbers.size, chunk.offset)[:] = numbers
    else:
        np.frombuffer(memory, np.uint8, chunk.data.nbytes, chunk.offset)[:] = np.frombuffer(chunk.data, np.uint8)


def to_bfloat16(values: Any) -> Any:
    """Round float32 numbers to the nearest bfloat16, ties to even. Returns their upper halves, uint16.

    The relative error of normal numbers is at most 2**-8 (0.4 %). Infinities and NaN are kept.

    >>> from_bfloat16(to_bfloat16(np.array([1.0, 3.14159274, -5.0], "<f4"))).tolist()
    [1.0, 3.140625, -5.0]
    """
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bfloat16(halves: Any) -> Any:
    """Return float32 numbers from their upper halves."""
    return (np.asarray(halves, "<u4") << np.uint32(16)).view("<f4")
