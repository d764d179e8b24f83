"""Check shared memory that has no name in the file system."""

from __future__ import annotations

import errno
import os

import pytest

from parenv.memory.shared import SharedMemory
from parenv.platform import posix, system


def test_shared_memory_has_no_name() -> None:
    memory = SharedMemory(4096)
    assert os.fstat(memory.fd).st_nlink == 0
    assert not os.get_inheritable(memory.fd)
    memory.close()


def test_shared_memory_of_any_posix_system_has_no_name() -> None:
    memory = SharedMemory(4096, fd=posix.make_memory())
    assert os.fstat(memory.fd).st_nlink == 0
    assert memory.map()[:] == bytes(4096)
    memory.close()


def test_two_mappings_are_the_same_memory() -> None:
    memory = SharedMemory(4096)
    one, other = memory.map(), memory.map()
    one[10:13] = b"abc"
    assert other[10:13] == b"abc"
    memory.close()


def test_shared_memory_begins_as_zeros_and_keeps_its_bytes_when_it_grows() -> None:
    memory = SharedMemory(4096)
    small = memory.map()
    assert small[:] == bytes(4096)
    small[:3] = b"abc"
    memory.grow(3 * 4096)
    large = memory.map()
    assert memory.size == len(large) == 3 * 4096
    assert large[:3] == b"abc"
    large[3:6] = b"def"
    assert small[:6] == b"abcdef"
    memory.close()


def test_a_duplicated_descriptor_refers_to_the_same_memory() -> None:
    memory = SharedMemory(4096)
    other = SharedMemory(fd=os.dup(memory.fd))
    assert other.size == 4096
    other.map()[0:1] = b"x"
    assert memory.map()[0:1] == b"x"
    other.close()
    memory.close()


def test_a_mapping_outlives_close_and_close_is_idempotent() -> None:
    memory = SharedMemory(4096)
    mapping = memory.map()
    memory.close()
    memory.close()
    mapping[:5] = b"still"
    assert mapping[:5] == b"still"


def test_only_reserved_bytes_take_memory() -> None:
    memory = SharedMemory(1 << 20)
    assert os.fstat(memory.fd).st_blocks == 0
    memory.reserve(4096, 8192)
    assert os.fstat(memory.fd).st_blocks * 512 == 8192
    memory.close()


def test_missing_memory_is_an_error_before_it_is_accessed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    memory = SharedMemory(4096)
    monkeypatch.setattr(system, "reserve", no_space)
    with pytest.raises(MemoryError, match=r"3 MB of shared memory cannot be reserved: .*No space left on device"):
        memory.reserve(0, 3_000_000)
    memory.close()
