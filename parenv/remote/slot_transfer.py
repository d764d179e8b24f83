"""Rollouts that are written in another machine's memory: what of a slot crosses the network, and where it goes.

A worker on a host has slots of its own there, with nobody else's columns. What it filled crosses as it lies, in chunks.
In the driver it lies in the pool's slot straight away where that has the same layout, and otherwise, where several
workers share a slot, it is put together from a slot's worth of memory beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parenv.errors import ProtocolError
from parenv.memory.agent_layout import NOBODY, AgentsLayout, AgentsSpec, RowGroup, agents_layout
from parenv.memory.layout import ROLLOUT_FIELDS, Axes, RolloutSpec, SlotLayout, part_of_slot, slot_layout
from parenv.memory.maps import SlotMap

Arrays = Mapping[tuple[str, Any], Any]


class SlotTransfer:
    """The slots of one worker on a host.

    Args:
        slots: of the pool.
        worker: index of the worker.

    Attributes:
        layout: of the worker's slots on its host.
        ends: of each group of rows, where the number of its episode ends is, and ``[offset, bytes]`` of what there is
            for each of these.
    """

    def __init__(self, slots: SlotMap, worker: int) -> None:
        self._slots = slots
        spec, num_envs = slots.spec, slots.shares[worker]
        self._groups = spec.groups if isinstance(spec, AgentsSpec) else (RowGroup(("",), spec),)
        self._lengths = [group.spec.rollout_length for group in self._groups]
        self._rows = [num_envs * len(group.agents) for group in self._groups]
        self.layout = _layout(spec, num_envs, 1)
        self.ends = [_ends(layout) for layout in self.layout.layouts]
        self._position, self._first = (worker, sum(slots.shares[:worker])) if slots.together else (0, 0)
        self._beside: tuple[Any, Any] | None = None
        self._laid_out: dict[int, tuple[Any, Any]] = {}
        self._whole: AgentsLayout | None = None
        if slots.together and len(slots.shares) > 1:
            self._whole = _layout(spec, sum(slots.shares), len(slots.shares))
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
            How many episodes of sub-environments end in it.

        Raises:
            ProtocolError: they are not the rollout of this credit.
        """
        _, mine = self._mine(slot)
        counts = [int(arrays["commits", 0]["num_ends"][0]) for arrays in mine]
        fits = all(0 <= counts[i] <= self._rows[i] * self._lengths[i] for i in range(len(counts)))
        expected = transfer_bytes(self.layout.reserved_bytes, self.ends, counts) if fits else -1
        if mine[0]["commits", 0]["sequence"][0] != sequence or received != expected:
            raise ProtocolError(
                f"{received} bytes, where the rollout of credit {sequence} with {sum(counts)} episode ends has "
                f"{expected}"
            )
        for index, arrays in enumerate(mine):
            self._check(index, arrays, counts[index])
        if self._whole is not None:
            whole = self._slot(slot, self._whole)[1]
            for index, arrays in enumerate(mine):
                self._put_together(index, arrays, whole[index], counts[index])
        return counts[0]

    def _check(self, index: int, arrays: Arrays, count: int) -> None:
        ends = arrays["ends", 0][:count]
        if count and not _within(ends["step"], self._lengths[index]) & _within(ends["column"], self._rows[index]):
            raise ProtocolError("an episode ends outside its rollout")
        for (name, _), values in arrays.items():
            if values.dtype == bool and (values[: _used(name, count)].view(np.uint8) > 1).any():
                raise ProtocolError(f"truth values are 0 or 1, and not all in {name} are")
        if index and isinstance(spec := self._slots.spec, AgentsSpec):  # Nobody acts in rows of sub-environments.
            known = [i for i, of in self._slots.policies().items() if spec.found[of].group == index]
            if not all(np.isin(arrays[name, 0], [NOBODY, *known]).all() for name in ("policies", "assigned")):
                raise ProtocolError("a policy acts that is none of these agents'")

    def _mine(self, slot: int) -> tuple[Any, Sequence[Arrays]]:
        """The bytes that chunks are written to, and the arrays there."""
        return self._slot(slot, self.layout) if self._beside is None else self._beside

    def _slot(self, slot: int, layout: AgentsLayout) -> tuple[Any, Any]:
        """The bytes and the arrays of a slot of the pool, which stay where they are."""
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


def _layout(spec: RolloutSpec | AgentsSpec, num_envs: int, num_workers: int) -> AgentsLayout:
    """Of several groups, or of the only one."""
    if isinstance(spec, AgentsSpec):
        return agents_layout(spec, num_envs, num_workers)
    alone = slot_layout(spec, num_envs, num_workers)
    return AgentsLayout((alone,), alone.reserved_bytes, alone.total_bytes)


def _ends(layout: SlotLayout) -> list[Any]:
    commits = next(field for field in layout.fields if field.name == ("commits", 0))
    per_end = [[field.offset, field.row_bytes] for field in layout.fields if field.offset >= layout.reserved_bytes]
    return [commits.offset + np.dtype(commits.dtype).fields["num_ends"][1], per_end]  # type: ignore[index]


def transfer_bytes(fixed_bytes: int, ends: Sequence[Any], counts: Sequence[int]) -> int:
    """What a rollout with so many episode ends in each group of rows has, in bytes.

    >>> transfer_bytes(1000, [[64, [[1024, 32], [2048, 16]]]], [3])
    1144
    """
    sparse: int = sum(count * nbytes for count, (_, per_end) in zip(counts, ends, strict=True) for _, nbytes in per_end)
    return fixed_bytes + sparse


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
