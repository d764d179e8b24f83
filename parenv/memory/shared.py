"""Shared memory without a name, which is freed with its last holder."""

from __future__ import annotations

import mmap
import os
import weakref

from parenv.errors import embedded
from parenv.platform import system
from parenv.platform.base import Handle


class SharedMemory:
    """A file in memory with a descriptor and without a name, so no file can be left behind or guessed.

    Args:
        size: Initial size in bytes. Default: 0.
        fd: Descriptor of existing shared memory, which this object then owns. Default: ``None``, make new memory.
    """

    def __init__(self, size: int = 0, fd: int | None = None) -> None:
        self.fd = system.make_memory() if fd is None else fd
        self._close = weakref.finalize(self, os.close, self.fd)
        if size:
            os.ftruncate(self.fd, size)

    @property
    def handle(self) -> Handle:
        """Return what another process needs to use this memory."""
        return Handle(self.fd)

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self.fd).st_size

    def grow(self, size: int) -> None:
        """Extend to ``size`` bytes; never shrink. No byte takes memory before it is touched or reserved."""
        os.ftruncate(self.fd, max(size, self.size))

    def reserve(self, offset: int, nbytes: int) -> None:
        """Allocate memory now, so that no later write to it can fail.

        Raises:
            MemoryError: Not enough memory is free.
        """
        # If the kernel finds no page for a write to the map, it ends the process with SIGBUS.
        try:
            system.reserve(self.fd, offset, nbytes)
        except OSError as error:
            raise MemoryError(
                f"{nbytes / 1e6:.0f} MB of shared memory cannot be reserved: {embedded(error)}. "
                "Free memory, or use fewer or smaller rollouts."
            ) from error

    def map(self) -> mmap.mmap:
        """Map the whole memory. The map stays valid after :meth:`close`, until its last reference is gone."""
        return mmap.mmap(self.fd, self.size)

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        self._close()
