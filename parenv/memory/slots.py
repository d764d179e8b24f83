"""States of slots: free, written by workers, or leased to the user until the last array over a slot is gone."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parenv.memory.device_memory import DeviceMemory
from parenv.memory.layout import SlotLayout


class _Lease(weakref.ref[Any]):
    """A reference to the memory of a leased slot."""

    __slots__ = ("slot",)
    slot: int


@dataclass(eq=False)
class Slots:
    """The slots of one shared memory.

    Args:
        memory: Mapping with the slots.
        offset: Offset of the first slot, in bytes.
        stride: Distance between two slots, in bytes.
        count: Number of slots.
        device: Memory of a device with the other part of each slot, or ``None``.
        device_stride: Distance between two slots in that memory, in bytes.
    """

    memory: mmap.mmap
    offset: int
    stride: int
    count: int
    device: DeviceMemory | None = None
    device_stride: int = 0

    def __post_init__(self) -> None:
        self._free = list(range(self.count))[::-1]
        self._leases: dict[int, _Lease] = {}
        self._waits: dict[int, Callable[[], object]] = {}
        self._returned: deque[_Lease] = deque()
        self._buffer_type = ctypes.c_char * self.stride

    @property
    def leased(self) -> int:
        """Number of slots with arrays that the user holds."""
        self._collect()
        return len(self._leases)

    @property
    def free(self) -> int:
        """Number of free slots."""
        self._collect()
        return len(self._free)

    def claim(self) -> int:
        """Take a free slot. Only while :attr:`free` is positive.

        This is the slot used last, whose memory is warm. On a device, it is the slot that has been free for longest,
        because the device has probably finished the work on it.
        """
        self._collect()
        if self.device is None:
            return self._free.pop()
        slot = self._free[0]
        if slot in self._waits:
            # The last user of the slot may have queued a copy from it on the device, which has to finish first.
            self._waits[slot]()
        self._waits.pop(slot, None)  # If the wait was interrupted, the slot is still free.
        return self._free.pop(0)

    def release(self, slot: int) -> None:
        """Give back a slot that was claimed and not leased."""
        self._note_use(slot)
        self._free.append(slot)

    def peek(self, slot: int) -> ctypes.Array[ctypes.c_char]:
        """Return the memory of a slot without a lease, to copy from it before the slot is released."""
        return self._buffer_type.from_buffer(self.memory, self.offset + slot * self.stride)

    def lease(self, slot: int) -> ctypes.Array[ctypes.c_char]:
        """Return the memory of a claimed slot. The slot is free again when the last array over it is garbage."""
        root = self.peek(slot)
        # The last array may go at any point and in any thread, so the callback only appends to a queue. It must not be
        # a Python function. A signal handler that raises in one would lose the slot.
        lease = self._leases[slot] = _Lease(root, self._returned.append)
        lease.slot = slot
        return root

    def arrays(self, layout: SlotLayout, slot: int, root: Any) -> list[Mapping[tuple[str, Any], Any]]:
        """Return the arrays of each group of a slot over its memory, which arrays on a device keep leased too."""
        arrays: list[Mapping[tuple[str, Any], Any]] = [*layout.arrays_when_read(root)]
        if self.device is not None:
            tensors = layout.tensors(self.device.tensor(slot * self.device_stride, layout.device_bytes, root))
            arrays[0] = {**arrays[0], **tensors}
        return arrays

    def _collect(self) -> None:
        # Another thread may drop the last array of a slot meanwhile. Operations of a deque are atomic.
        while self._returned:
            self._note_use(self._returned[0].slot)
            slot = self._returned.popleft().slot
            del self._leases[slot]
            self._free.append(slot)

    def _note_use(self, slot: int) -> None:
        """Note the work on the device that was queued while the slot was in use."""
        if self.device is not None:
            self._waits[slot] = self.device.queued()
