"""Where the states of a population's members lie: each in a place of its own, as plain data, read by whoever needs it.

A place has more room than any state takes: memory is taken by the pages that are written.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError, ProtocolError
from parenv.memory.layout import ALIGNMENT
from parenv.memory.status_slot import header_bytes
from parenv.protocol.data import pack, unpack

ROOM = 1 << 32
"""Bytes from one place to the next."""
_LENGTH = struct.Struct("<Q")


class MemberPlaces:
    """The places in a population's shared memory, behind the status slots.

    Args:
        num_workers: how many status slots there are.
        buffer: the memory; may be given later, as the attribute.
    """

    def __init__(self, num_workers: int, buffer: Any = None) -> None:
        self._first, self.buffer = header_bytes(num_workers), buffer

    def offset(self, place: int) -> int:
        """Where a place begins; of one behind the last, also how many bytes all take with what is before them."""
        return self._first + place * ROOM

    def write(self, place: int, state: Any) -> int:
        """Write a state; how many bytes it takes.

        Raises:
            NotDataError: it holds something else than plain data.
            ConfigurationError: there is no room for it.
        """
        text, buffers = pack(state, views=True)
        parts = [memoryview(part).cast("B") for part in (text, *buffers)]
        lengths = [len(parts), *(part.nbytes for part in parts)]
        head = b"".join(map(_LENGTH.pack, lengths))
        return self.write_bytes(place, [memoryview(head), *parts])

    def write_bytes(self, place: int, parts: list[memoryview]) -> int:
        """Write what :meth:`read_bytes` gave, or parts of that one behind the other; how many bytes that is."""
        nbytes = sum(part.nbytes for part in parts)
        if nbytes > ROOM:
            raise ConfigurationError(f"the state of a member takes {nbytes:,} bytes, and there is room for {ROOM:,}")
        at = self.offset(place)
        for part in parts:
            self.buffer[at : at + part.nbytes] = part
            at += part.nbytes
        return nbytes

    def read(self, place: int) -> Any:
        """The state in a place; its arrays can be written, and are the only copy that is made.

        Raises:
            ProtocolError: there is none.
        """
        with memoryview(self.buffer) as whole:
            stops = self._stops(whole, place)
            # Copied before anything is read from it, so that nobody writes to it meanwhile.
            parts = [_copied(whole[begin:stop]) for begin, stop in itertools.pairwise(stops)]
        return unpack(parts[0], parts[1:], writable=True)

    def read_bytes(self, place: int) -> bytes:
        """A place as it is."""
        with memoryview(self.buffer) as whole:
            return bytes(whole[self.offset(place) : self._stops(whole, place)[-1]])

    def _stops(self, whole: memoryview, place: int) -> list[int]:
        """Where the first part of a state begins, and where each ends."""
        at, stop = self.offset(place), self.offset(place) + ROOM
        (count,) = _LENGTH.unpack_from(whole, at)
        begin = at + _LENGTH.size * (1 + count)
        if not 0 < count < ROOM // _LENGTH.size or begin > stop:
            raise ProtocolError(f"place {place} holds no state of a member")
        lengths = struct.unpack_from(f"<{count}Q", whole, at + _LENGTH.size)
        stops = list(itertools.accumulate(lengths, initial=begin))
        if stops[-1] > stop:
            raise ProtocolError(f"the state of a member in place {place} does not end")
        return stops


def _copied(part: memoryview) -> memoryview:
    """A copy where torch's own tensors could begin, since what it computes with others may differ in the last bit."""
    room = np.empty(part.nbytes + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    copied = room[begin : begin + part.nbytes]
    copied.data[:] = part
    return copied.data
