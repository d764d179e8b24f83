"""Places for the states of a population's members in shared memory, one state of plain data in each.

A place reserves more bytes than any state needs. The kernel allocates only the pages that are written.
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
    """The places in a population's shared memory, after the status slots.

    Args:
        num_workers: Number of status slots.
        buffer: Shared memory. It can be set later, as the attribute.
    """

    def __init__(self, num_workers: int, buffer: Any = None) -> None:
        self._first, self.buffer = header_bytes(num_workers), buffer

    def offset(self, place: int) -> int:
        """Return the offset of a place in bytes. The offset after the last place is the size of the memory."""
        return self._first + place * ROOM

    def write(self, place: int, state: Any) -> int:
        """Write a state, and return its size in bytes.

        Raises:
            NotDataError: The state is not plain data.
            ConfigurationError: The state is larger than a place.
        """
        text, buffers = pack(state, views=True)
        parts = [memoryview(part).cast("B") for part in (text, *buffers)]
        lengths = [len(parts), *(part.nbytes for part in parts)]
        head = b"".join(map(_LENGTH.pack, lengths))
        return self.write_bytes(place, [memoryview(head), *parts])

    def write_bytes(self, place: int, parts: list[memoryview]) -> int:
        """Write the result of :meth:`read_bytes`, or its parts in order, and return the size in bytes."""
        nbytes = sum(part.nbytes for part in parts)
        if nbytes > ROOM:
            raise ConfigurationError(
                f"the state of a member must have at most {ROOM:,} bytes, got {nbytes:,}. Leave parts such as replay "
                "buffers out of the Member."
            )
        at = self.offset(place)
        for part in parts:
            self.buffer[at : at + part.nbytes] = part
            at += part.nbytes
        return nbytes

    def read(self, place: int) -> Any:
        """Return the state in a place. Its arrays are writable, and are the only copy.

        Raises:
            ProtocolError: The place has no state.
        """
        with memoryview(self.buffer) as whole:
            stops = self._stops(whole, place)
            # The copy comes first, so that a worker cannot change the parts while they are unpacked.
            parts = [_copied(whole[begin:stop]) for begin, stop in itertools.pairwise(stops)]
        return unpack(parts[0], parts[1:], writable=True)

    def read_bytes(self, place: int) -> bytes:
        """Return the bytes of a state."""
        with memoryview(self.buffer) as whole:
            return bytes(whole[self.offset(place) : self._stops(whole, place)[-1]])

    def _stops(self, whole: memoryview, place: int) -> list[int]:
        """Return the offset of the first part of a state, and the end of each part."""
        at, stop = self.offset(place), self.offset(place) + ROOM
        # A worker may have written anything here, so each number is checked before it is used as an offset.
        (count,) = _LENGTH.unpack_from(whole, at)
        begin = at + _LENGTH.size * (1 + count)
        if not 0 < count < ROOM // _LENGTH.size or begin > stop:
            raise ProtocolError(f"place {place} does not contain the state of a member")
        lengths = struct.unpack_from(f"<{count}Q", whole, at + _LENGTH.size)
        stops = list(itertools.accumulate(lengths, initial=begin))
        if stops[-1] > stop:
            raise ProtocolError(f"the state of a member in place {place} is longer than its place")
        return stops


def _copied(part: memoryview) -> memoryview:
    """Copy to an aligned address, because results of torch can differ in the last bit with other addresses."""
    room = np.empty(part.nbytes + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    copied = room[begin : begin + part.nbytes]
    copied.data[:] = part
    return copied.data
