"""Devices of a policy's module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parenv.errors import ConfigurationError
from parenv.policy.copies import copied
from parenv.policy.snapshots import module_of, tensors_of


def check_devices(devices: Iterable[str], option: str = "device") -> None:
    """Check that torch finds these devices on this machine.

    Args:
        devices: Names of the devices.
        option: Worker option with these names, for messages. Default: ``device``.

    Raises:
        ConfigurationError: A device is missing, or its name is not valid.
    """
    for device in devices:
        if device == "cpu":
            continue
        import torch

        try:
            wanted = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ConfigurationError(
                f"WorkerOptions.{option} must name torch devices, got {device!r}: {error}"
            ) from None
        there: dict[str, int] = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
        if (wanted.index or 0) >= (count := there.get(wanted.type, 1 << 30)):
            raise ConfigurationError(
                f"WorkerOptions.{option} must name a device that torch {torch.__version__} finds on this machine, got "
                f"{device!r}, but it finds {count} of this type. Leave {option} out, or install a build of torch for "
                "your devices."
            )


def device_of(policy: Any) -> str:
    """Return the device type of a policy's module, or ``"cpu"`` for a policy without tensors."""
    return next(iter(_devices(policy)), "cpu")


def on_device(policy: Any, device: str) -> Any:
    """Return the policy itself if its module is on this device, or else a copy on this device."""
    if set(_devices(policy)) <= {device}:
        return policy
    another = copied(policy)
    module_of(another).to(device)
    return another


def _devices(policy: Any) -> list[str]:
    module = module_of(policy)
    return [] if module is None else [tensor.device.type for tensor in tensors_of(module).values()]
