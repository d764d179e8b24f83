"""Pinned memory: CUDA can copy from it while the host continues."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from parenv.experience.rollout import NAMED, TREES, Rollout
from parenv.memory.trees import leaves_in


class Pins:
    """Registers the shared memory of rollouts with CUDA until it is closed, each slot once.

    If CUDA refuses, such as under a limit on locked memory, copies are slower and otherwise the same.

    Args:
        cudart: Result of ``torch.cuda.cudart()``.
    """

    def __init__(self, cudart: Any) -> None:
        self._cudart = cudart
        self._seen: dict[int, bool] = {}

    def pin(self, rollout: Rollout) -> None:
        """Register the slot of a rollout, up to the end of its last array."""
        extent = slot_of(rollout)
        if extent is not None and extent[0] not in self._seen:
            self._seen[extent[0]] = int(self._cudart.cudaHostRegister(*extent, 0)) == 0

    def close(self) -> None:
        """Unregister all memory."""
        for address, registered in self._seen.items():
            if registered:
                self._cudart.cudaHostUnregister(address)
        self._seen.clear()


def slot_of(rollout: Rollout) -> tuple[int, int] | None:
    """Return the address and the size of a rollout's slot, or ``None`` if the rollout has its own memory."""
    fields = [getattr(rollout, name) for name in (*TREES, *NAMED)]
    arrays = [value for tree in fields for _, value in leaves_in(tree) if isinstance(value, np.ndarray)]
    root: Any = rollout.rewards
    while isinstance(root, np.ndarray):
        root = root.base
    if not isinstance(root, ctypes.Array):
        return None
    begin = ctypes.addressof(root)
    return begin, max(map(_end_of, arrays)) - begin


def _end_of(array: np.ndarray[Any, Any]) -> int:
    """Return the address after the last item, as ``byte_bounds`` does. Its module depends on the version of numpy."""
    reach = sum((length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True) if stride > 0)
    return array.ctypes.data + (reach + array.itemsize if array.size else 0)
