"""Who holds which slot: free, written by workers, or leased to the user until the last array over it is gone."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections import deque


class Slots:
    """The slots of one shared memory.

    Args:
        memory: the mapping they lie in.
        offset: where the first begins, in bytes.
        stride: distance between two, in bytes.
        count: how many there are.
    """

    def __init__(self, memory: mmap.mmap, offset: int, stride: int, count: int) -> None:
        self._memory = memory
        self._offset = offset
        self._stride = stride
        self._free = list(range(count))[::-1]
        self._leased = 0
        self._returned: deque[int] = deque()
        self._buffer_type = ctypes.c_char * stride

    @property
    def leased(self) -> int:
        """How many slots the user holds arrays of."""
        self._collect()
        return self._leased

    @property
    def free(self) -> int:
        """How many slots nobody holds."""
        self._collect()
        return len(self._free)

    def claim(self) -> int:
        """Take a free slot, the one used last, whose memory is warm. Only while :attr:`free` is positive."""
        self._collect()
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Give back a slot that was claimed and not leased."""
        self._free.append(slot)

    def peek(self, slot: int) -> ctypes.Array[ctypes.c_char]:
        """The memory of a slot, without a lease: for reading what is copied before the slot is released."""
        return self._buffer_type.from_buffer(self._memory, self._offset + slot * self._stride)

    def lease(self, slot: int) -> ctypes.Array[ctypes.c_char]:
        """The memory of a claimed slot. The slot is free again when the last array over it is garbage collected.

        The collector may run at any point and in any thread, so all it does is to append to a queue.
        """
        root = self.peek(slot)
        self._leased += 1
        weakref.finalize(root, self._returned.append, slot).atexit = False
        return root

    def _collect(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
            self._leased -= 1
