"""Device memory that several processes share.

The main process allocates the memory and owns it, so it survives a killed worker. Workers open it by a handle of bytes.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from parenv.errors import ConfigurationError
from parenv.memory.layout import aligned

_LAZY_PEER_ACCESS = 1
_OUT_OF_MEMORY = 2
_WHOLE_BYTES = 1 << 21
"""CUDA shares whole blocks, and puts smaller allocations into a common block."""


class DeviceMemory(Protocol):
    """A block of device memory.

    Attributes:
        device: Name of the device with its index.
        handle: Handle by which another process opens the block.
    """

    device: str
    handle: bytes

    def __init__(self, device: str, nbytes: int, handle: bytes | None = None) -> None:
        """Allocate this many bytes, or open a block of another process by its handle."""

    def tensor(self, offset: int, nbytes: int, keep: Any = None) -> Any:
        """Return a part as a tensor of bytes. ``keep`` is held until the last tensor over this part is gone."""

    def finish(self) -> None:
        """Wait until the device has finished all work of this process."""

    def queued(self) -> Callable[[], object]:
        """Return a function that waits until the device has finished the work that is queued now.

        The work is on the current stream of this thread, or on the default stream.
        """

    def close(self) -> None:
        """Free the block when the last tensor over it is gone."""


class CudaMemory:
    """Memory of an NVIDIA GPU, shared through CUDA IPC.

    It does not come from torch's allocator. That counts shared blocks in named files, which remain after a kill.
    """

    def __init__(self, device: str, nbytes: int, handle: bytes | None = None) -> None:
        import torch

        wanted = torch.device(device)
        index = torch.cuda.current_device() if wanted.index is None else wanted.index
        self.device = f"cuda:{index}"
        self._block: _Block | None = _Block(index, nbytes, handle)
        self.handle = handle or self._block.exported()

    def tensor(self, offset: int, nbytes: int, keep: Any = None) -> Any:
        """Return a part as a tensor of bytes."""
        import torch

        assert self._block is not None
        return torch.as_tensor(_Part(self._block, offset, nbytes, keep), device=self.device)

    def finish(self) -> None:
        """Wait until the device has finished all work of this process."""
        import torch

        torch.cuda.synchronize(self.device)

    def queued(self) -> Callable[[], object]:
        """Return a function that waits until the device has finished the work on the current and default streams."""
        import torch

        streams = {torch.cuda.current_stream(self.device), torch.cuda.default_stream(self.device)}
        events = [stream.record_event() for stream in streams]
        return lambda: [event.synchronize() for event in events]

    def close(self) -> None:
        """Free the block when the last tensor over it is gone."""
        self._block = None


class _Handle(ctypes.Structure):
    _fields_ = [("opaque", ctypes.c_char * 64)]


class _Block:
    """A block that CUDA has allocated or opened. It is freed when this object is garbage."""

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
        """Return the handle of this block."""
        handle = _Handle()
        _ask(self.index, "cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self.address))
        return bytes(handle)


class _Part:
    """Object from which torch makes a tensor. The last tensor over it drops it."""

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
    """Call a function of the CUDA driver in torch's context of a GPU.

    Raises:
        ConfigurationError: The function fails.
    """
    import torch

    library = ctypes.CDLL("libcuda.so.1")
    with torch.cuda.device(index):
        torch.cuda.synchronize()  # This makes the context current in this thread.
        code = getattr(library, function)(*arguments)
    if not code:
        return
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    hint = (
        "Use a shorter rollout_length, fewer sub-environments, a smaller prefetch or smaller observations."
        if code == _OUT_OF_MEMORY
        else "Processes cannot share the memory of this GPU on this machine. Use rollout_device=None."
    )
    reason = (text.value or b"").decode()
    raise ConfigurationError(
        f"rollouts cannot be stored on cuda:{index}: {function} returned {code} ({reason}). {hint}"
    )


KINDS: dict[str, type[DeviceMemory]] = {"cuda": CudaMemory}
"""Memory class of each device type."""

_allocated: weakref.WeakValueDictionary[bytes, DeviceMemory] = weakref.WeakValueDictionary()


def check_memory(device: str) -> None:
    """Check that processes can share memory of a device.

    Raises:
        ConfigurationError: They cannot.
    """
    if device.partition(":")[0] not in KINDS:
        raise ConfigurationError(
            f"WorkerOptions.rollout_device must be None (shared memory) or one of {', '.join(KINDS)}, got {device!r}"
        )


def allocated(device: str, nbytes: int) -> DeviceMemory:
    """Allocate device memory.

    Raises:
        ConfigurationError: Not enough memory is free, or it cannot be shared.
    """
    memory = _kind(device)(device, nbytes)
    _allocated[memory.handle] = memory
    return memory


def opened(device: str, handle: bytes) -> DeviceMemory:
    """Open a block of the main process. CUDA does not open a block of the same process, so that is looked up."""
    return _allocated.get(handle) or _kind(device)(device, 0, handle)


def _kind(device: str) -> type[DeviceMemory]:
    return KINDS[device.partition(":")[0]]
