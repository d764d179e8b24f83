"""Memory of a device that several processes use: the driver allocates it, workers open it by a handle of plain bytes.

It is the driver's alone, so that a worker that is killed takes nothing with it.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Protocol

from parenv.errors import ConfigurationError
from parenv.memory.layout import aligned

_LAZY_PEER_ACCESS = 1
_OUT_OF_MEMORY = 2
_WHOLE_BYTES = 1 << 21
"""CUDA puts smaller allocations into one block, and shares blocks."""


class DeviceMemory(Protocol):
    """A block of memory of a device.

    Attributes:
        device: where it is, with an index.
        handle: by which another process opens it.
    """

    device: str
    handle: bytes

    def __init__(self, device: str, nbytes: int, handle: bytes | None = None) -> None:
        """Allocate so many bytes, or open what another process has allocated, however many."""

    def tensor(self, offset: int, nbytes: int, keep: Any = None) -> Any:
        """A part as a tensor of bytes. It holds ``keep`` for as long as there is a tensor over this part."""

    def finish(self) -> None:
        """Wait until the device has done what this process has asked of it."""

    def close(self) -> None:
        """Give it back with the last tensor over it."""


class CudaMemory:
    """Of an NVIDIA GPU, through CUDA IPC.

    It is not of torch's allocator, which counts what it shares in files that have names and stay when it is killed.
    """

    def __init__(self, device: str, nbytes: int, handle: bytes | None = None) -> None:
        import torch

        wanted = torch.device(device)
        index = torch.cuda.current_device() if wanted.index is None else wanted.index
        self.device = f"cuda:{index}"
        self._block: _Block | None = _Block(index, nbytes, handle)
        self.handle = handle or self._block.exported()

    def tensor(self, offset: int, nbytes: int, keep: Any = None) -> Any:
        """A part as a tensor of bytes."""
        import torch

        assert self._block is not None
        return torch.as_tensor(_Part(self._block, offset, nbytes, keep), device=self.device)

    def finish(self) -> None:
        """Wait until the device has done what this process has asked of it."""
        import torch

        torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Give it back with the last tensor over it."""
        self._block = None


class _Handle(ctypes.Structure):
    _fields_ = [("opaque", ctypes.c_char * 64)]


class _Block:
    """What CUDA has allocated or opened; given back when it is garbage."""

    def __init__(self, index: int, nbytes: int, handle: bytes | None) -> None:
        pointer = ctypes.c_uint64()
        if handle is None:
            whole = ctypes.c_size_t(aligned(nbytes, _WHOLE_BYTES))
            _ask(index, "cuMemAlloc_v2", ctypes.byref(pointer), whole)
            weakref.finalize(self, _ask, index, "cuMemFree_v2", pointer).atexit = False
        else:
            opaque, flags = _Handle.from_buffer_copy(handle), ctypes.c_uint(_LAZY_PEER_ACCESS)
            _ask(index, "cuIpcOpenMemHandle_v2", ctypes.byref(pointer), opaque, flags)
            weakref.finalize(self, _ask, index, "cuIpcCloseMemHandle", pointer).atexit = False
        self.index, self.address = index, int(pointer.value)

    def exported(self) -> bytes:
        """Its handle."""
        handle = _Handle()
        _ask(self.index, "cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self.address))
        return bytes(handle)


class _Part:
    """What torch makes a tensor of, and lets go with the last tensor over it."""

    def __init__(self, block: _Block, offset: int, nbytes: int, keep: Any) -> None:
        self._holds = block, keep
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (block.address + offset, False),
            "strides": None,
            "version": 2,
        }


def _ask(index: int, function: str, *arguments: Any) -> None:
    """Call a function of CUDA's driver in the context that torch has for a GPU.

    Raises:
        ConfigurationError: it refuses.
    """
    import torch

    library = ctypes.CDLL("libcuda.so.1")
    with torch.cuda.device(index):
        torch.cuda.synchronize()  # Which makes that context this thread's.
        code = getattr(library, function)(*arguments)
    if not code:
        return
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    hint = (
        "a shorter rollout_length, fewer sub-environments, a smaller prefetch or smaller observations take less memory"
        if code == _OUT_OF_MEMORY
        else "memory of this GPU cannot be shared between processes here; rollout_device=None does without"
    )
    reason = (text.value or b"").decode()
    raise ConfigurationError(f"rollouts cannot lie on cuda:{index}: {function} said {code} ({reason}): {hint}")


KINDS: dict[str, type[DeviceMemory]] = {"cuda": CudaMemory}
"""By type of device, its memory."""

_allocated: weakref.WeakValueDictionary[bytes, DeviceMemory] = weakref.WeakValueDictionary()


def check_memory(device: str) -> None:
    """Refuse a device whose memory processes cannot share.

    Raises:
        ConfigurationError: it is one.
    """
    if device.partition(":")[0] not in KINDS:
        raise ConfigurationError(
            f"WorkerOptions.rollout_device={device!r}, but rollouts lie in shared memory of the host (None) or on a "
            f"device of these: {', '.join(KINDS)}"
        )


def allocated(device: str, nbytes: int) -> DeviceMemory:
    """New memory of a device.

    Raises:
        ConfigurationError: there is not that much, or it cannot be shared.
    """
    memory = _kind(device)(device, nbytes)
    _allocated[memory.handle] = memory
    return memory


def opened(device: str, handle: bytes) -> DeviceMemory:
    """What the driver has allocated; no device opens a second time what this very process has allocated."""
    return _allocated.get(handle) or _kind(device)(device, 0, handle)


def _kind(device: str) -> type[DeviceMemory]:
    return KINDS[device.partition(":")[0]]
