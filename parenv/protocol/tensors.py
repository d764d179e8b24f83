"""Names of tensors, and their conversion to plain data and back. They become bytes, so all dtypes are supported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from parenv.errors import ProtocolError

_TENSOR = "torch.Tensor"


def plain_name(name: str) -> str:
    """Return the name that a parameter or buffer has if its module is not compiled.

    >>> plain_name("_orig_mod.actor._orig_mod.weight")
    'actor.weight'
    """
    return name.replace("_orig_mod.", "")  # torch.compile() puts the module into another one, under this name.


def without_tensors(value: Any, where: str, other: Callable[[Any, str], Any] = lambda value, where: value) -> Any:
    """Return a value with its tensors as plain data.

    Args:
        value: Tensors and other values, nested in mappings, lists and tuples.
        where: Name of the value in messages.
        other: Function ``(value, name) -> plain data`` for values that are not tensors. Default: return the value.
    """
    if hasattr(value, "detach"):
        import torch

        flat = value.detach().cpu().contiguous().reshape(-1)
        return {_TENSOR: [str(value.dtype).removeprefix("torch."), list(value.shape), flat.view(torch.uint8).numpy()]}
    if isinstance(value, Mapping):
        return {key: without_tensors(item, f"{where}[{key!r}]", other) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(without_tensors(item, f"{where}[{i}]", other) for i, item in enumerate(value))
    return other(value, where)


def with_tensors(value: Any) -> Any:
    """Return a value with tensors on the CPU, the inverse of :func:`without_tensors`.

    Tensors share the memory of writable arrays.

    Raises:
        ProtocolError: A tensor has a dtype that torch does not have.
    """
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            import torch

            if not isinstance(value[_TENSOR], list):  # Older checkpoints contain the array itself.
                return torch.tensor(value[_TENSOR])
            dtype, shape, raw = value[_TENSOR]
            if (kind := _dtypes().get(str(dtype))) is None:
                raise ProtocolError(f"the dtype of a tensor must be one of torch, got {dtype!r}")
            raw = raw if raw.flags.writeable else raw.copy()
            flat = torch.from_numpy(raw).view(kind) if len(raw) else torch.empty(0, dtype=kind)
            return flat.reshape(shape)
        return {key: with_tensors(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(with_tensors(item) for item in value)
    return value


@cache
def _dtypes() -> dict[str, Any]:
    """Return the dtypes of torch by name. Files and hosts choose one, and must not reach other attributes of torch."""
    import torch

    found = (value for value in vars(torch).values() if isinstance(value, torch.dtype))
    return {str(dtype).removeprefix("torch."): dtype for dtype in found}
