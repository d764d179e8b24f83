"""Where a policy's module lives, and where else it could."""

from __future__ import annotations

import copy
from typing import Any

from parenv.policy.snapshots import module_of, tensors_of


def accelerator(policy: Any) -> str | None:
    """The type of device, ``"cuda"`` or ``"mps"``, that torch finds for a policy's module beside the CPU."""
    if module_of(policy) is None:
        return None
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None


def device_of(policy: Any) -> str:
    """The type of device on which a policy's module lives; that of one without tensors is the CPU."""
    return next(iter(_devices(policy)), "cpu")


def on_device(policy: Any, device: str) -> Any:
    """The policy itself, or, where its module lives on another device, a copy on this one."""
    if set(_devices(policy)) <= {device}:
        return policy
    copied = copy.deepcopy(policy)
    module_of(copied).to(device)
    return copied


def _devices(policy: Any) -> list[str]:
    module = module_of(policy)
    return [] if module is None else [tensor.device.type for tensor in tensors_of(module).values()]
