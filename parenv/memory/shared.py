"""The one file that asks the operating system for shared memory: anonymous, and freed with its last holder."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref


class SharedMemory:
    """A file in memory with a descriptor and without a name, so no file can be left behind or guessed.

    Args:
        size: bytes to begin with.
        fd: descriptor of existing shared memory to take over instead of making new.
    """

    def __init__(self, size: int = 0, fd: int | None = None) -> None:
        self.fd = _anonymous_file() if fd is None else fd
        self._close = weakref.finalize(self, os.close, self.fd)
        if size:
            os.ftruncate(self.fd, size)

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self.fd).st_size

    def grow(self, size: int) -> None:
        """Extend to ``size`` bytes, none of which takes memory before it is touched or reserved; it never shrinks."""
        os.ftruncate(self.fd, max(size, self.size))

    def reserve(self, offset: int, nbytes: int) -> None:
        """Claim memory now, so that it cannot be missing when it is touched.

        Raises:
            MemoryError: there is not that much memory.
        """
        if not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self.fd, offset, nbytes)
        except OSError as error:
            raise MemoryError(f"cannot reserve {nbytes / 1e6:.0f} MB of shared memory: {error}") from error

    def map(self) -> mmap.mmap:
        """Map all of it. The mapping stays valid after :meth:`close`, until its last reference is gone."""
        return mmap.mmap(self.fd, self.size)

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        self._close()


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("parenv", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
