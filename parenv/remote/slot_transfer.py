"""Rollouts that are written in another machine's memory: what of a slot crosses the network, and where it goes.

A worker on a host has slots of its own there, with nobody else's columns. What it filled crosses as it lies, in chunks.
In the driver it lies in the pool's slot straight away where that has the same layout, and otherwise, where several
workers share a slot, it is put together from a slot's worth of memory beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from parenv.errors import ProtocolError
from parenv.memory.layout import ROLLOUT_FIELDS, Axes, SlotLayout, part_of_slot, slot_layout
from parenv.memory.maps import SlotMap


class SlotTransfer:
    """The slots of one worker on a host.

    Args:
        slots: of the pool.
        worker: index of the worker.

    Attributes:
        layout: of the worker's slots on its host.
        per_end: ``[offset, bytes]`` of what there is for each episode end.
        ends_offset: where in a slot the number of these is.
    """

    def __init__(self, slots: SlotMap, worker: int) -> None:
        self._slots, self._num_envs = slots, slots.shares[worker]
        self.layout = slot_layout(slots.spec, self._num_envs, 1)
        fields = {field.name: field for field in self.layout.fields}
        commits = fields["commits", 0]
        self.ends_offset = commits.offset + np.dtype(commits.dtype).fields["num_ends"][1]  # type: ignore[index]
        self.per_end = [
            [field.offset, np.dtype(field.dtype).itemsize * int(np.prod(field.shape[1:], dtype=np.int64))]
            for field in self.layout.fields
            if field.offset >= self.layout.reserved_bytes
        ]
        self._position, self._first = (worker, sum(slots.shares[:worker])) if slots.together else (0, 0)
        self._beside: tuple[Any, Any] | None = None
        self._laid_out: dict[int, tuple[Any, Any]] = {}
        self._whole: SlotLayout | None = None
        if slots.together and len(slots.shares) > 1:
            self._whole = slot_layout(slots.spec, sum(slots.shares), len(slots.shares))
            beside = np.zeros(self.layout.total_bytes, np.uint8)
            self._beside = beside, self.layout.arrays(beside)

    def write(self, slot: int, offset: int, data: memoryview) -> None:
        """Put a chunk where it belongs.

        Raises:
            ProtocolError: it does not fit into a slot.
        """
        if offset < 0 or offset + data.nbytes > self.layout.total_bytes:
            raise ProtocolError(f"a chunk of {data.nbytes} bytes at {offset} does not fit into a slot")
        to, _ = self._mine(slot)
        to[offset : offset + data.nbytes] = np.frombuffer(data, np.uint8)

    def finish(self, slot: int, sequence: int, received: int) -> int:
        """All chunks are there.

        Args:
            slot: of the pool.
            sequence: of the credit.
            received: bytes in all chunks.

        Returns:
            How many episodes end in it.

        Raises:
            ProtocolError: they are not the rollout of this credit.
        """
        _, arrays = self._mine(slot)
        record, T, B = arrays["commits", 0], self._slots.spec.rollout_length, self._num_envs
        count = int(record["num_ends"][0])
        expected = transfer_bytes(self.layout.reserved_bytes, self.per_end, count) if 0 <= count <= T * B else -1
        if record["sequence"][0] != sequence or received != expected:
            raise ProtocolError(
                f"{received} bytes, where the rollout of credit {sequence} with {count} episode ends has {expected}"
            )
        ends = arrays["ends", 0][:count]
        if count and not _within(ends["step"], T) & _within(ends["column"], B):
            raise ProtocolError("an episode ends outside its rollout")
        for (name, _), values in arrays.items():
            if values.dtype == bool and (values[: _used(name, count)].view(np.uint8) > 1).any():
                raise ProtocolError(f"truth values are 0 or 1, and not all in {name} are")
        if self._whole is not None:
            self._put_together(arrays, self._slot(slot, self._whole)[1], count)
        return count

    def _mine(self, slot: int) -> tuple[Any, Any]:
        """The bytes that chunks are written to, and the arrays there."""
        return self._slot(slot, self.layout) if self._beside is None else self._beside

    def _slot(self, slot: int, layout: SlotLayout) -> tuple[Any, Any]:
        """The bytes and the arrays of a slot of the pool, which stay where they are."""
        if slot not in self._laid_out:
            begin = self._slots.offset + slot * self._slots.slot_bytes
            there = np.frombuffer(self._slots.memory, np.uint8, self._slots.slot_bytes, begin)
            self._laid_out[slot] = there, layout.arrays(there)
        return self._laid_out[slot]

    def _put_together(self, mine: Any, whole: Any, count: int) -> None:
        T, stop = self._slots.spec.rollout_length, self._first + self._num_envs
        part = part_of_slot(T, self._position, self._first, stop)
        for (name, key), values in mine.items():
            used = _used(name, count)
            whole[name, key][part[name]][:used] = values[:used]
        whole["ends", 0][part["ends"]]["column"][:count] += self._first


def transfer_bytes(fixed_bytes: int, per_end: Sequence[Sequence[int]], ends: int) -> int:
    """What a rollout with so many episode ends has, in bytes.

    >>> transfer_bytes(1000, [[1024, 32], [2048, 16]], 3)
    1144
    """
    return fixed_bytes + ends * sum(nbytes for _, nbytes in per_end)


def in_chunks(memory: memoryview, parts: Sequence[tuple[int, int]], most: int) -> Iterator[list[Any]]:
    """Parts of a memory, cut up so that they pass in turns of so many bytes.

    Args:
        memory: bytes.
        parts: offset and number of bytes of each.
        most: bytes in a turn.

    Yields:
        ``[offset, bytes]`` of each chunk in a turn.

    >>> turns = in_chunks(memoryview(bytes(99)), [(0, 5), (8, 4)], 4)
    >>> [[(offset, data.nbytes) for offset, data in turn] for turn in turns]
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
    """How much of a field's arrays is used where so many episodes end; ``None``: all."""
    return count if ROLLOUT_FIELDS[name].axes is Axes.ENDS else None


def _within(values: Any, stop: int) -> bool:
    return bool((values >= 0).all() and (values < stop).all())
