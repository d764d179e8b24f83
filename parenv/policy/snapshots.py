"""How new versions of a policy reach the workers' copies.

A torch module's parameters and buffers lie one after the other in one flat block: the driver writes a block of
shared memory, a worker copies it in one go behind its own module. A policy without a module travels pickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parenv.errors import ConfigurationError
from parenv.memory.layout import aligned
from parenv.policy.policy import is_module


@dataclass(frozen=True)
class FlatTensor:
    """Where one parameter or buffer lies in the flat block."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    offset: int
    nbytes: int


def module_of(policy: Any) -> Any:
    """The torch module whose tensors are what changes between versions, or ``None``."""
    return policy if is_module(policy) else getattr(policy, "module", None)


def modules_of(policies: Mapping[str, Any]) -> dict[str, Any]:
    """By name of a policy, its module; those without are left out."""
    modules = {name: module_of(policy) for name, policy in policies.items()}
    return {name: module for name, module in modules.items() if module is not None}


def tensors_of(module: Any) -> dict[str, Any]:
    """All parameters and buffers of a module by name, each once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def flat_layout(module: Any) -> tuple[tuple[FlatTensor, ...], int]:
    """Lay out all parameters and buffers of a module, each once; the layout and the size of the block in bytes.

    Raises:
        ConfigurationError: a tensor without a plain dense memory.
    """
    placed, offset = [], 0
    for name, tensor in tensors_of(module).items():
        if tensor.is_sparse or tensor.is_quantized or tensor.is_meta:
            raise ConfigurationError(
                f"the tensor {name!r} of the policy is not dense, and cannot be published: make it dense"
            )
        nbytes = tensor.numel() * tensor.element_size()
        placed.append(FlatTensor(name, tuple(tensor.shape), tensor.dtype, offset, nbytes))
        offset = aligned(offset + nbytes)
    return tuple(placed), offset


def float32_parts(module: Any) -> tuple[tuple[int, int], ...]:
    """``(begin, stop)`` of the parts of the flat block that hold nothing but float32, in order."""
    import torch

    parts: list[tuple[int, int]] = []
    for tensor in flat_layout(module)[0]:
        if tensor.dtype == torch.float32 and tensor.nbytes:
            stop = aligned(tensor.offset + tensor.nbytes)
            begins_behind = parts and parts[-1][1] == tensor.offset
            parts.append((parts.pop()[0] if begins_behind else tensor.offset, stop))
    return tuple(parts)


def _flat(memory: Any, offset: int, nbytes: int) -> Any:
    """Bytes of a memory as a tensor over it; torch makes none over nothing."""
    import torch

    kind: Any = torch.uint8
    return torch.frombuffer(memory, dtype=kind, count=nbytes, offset=offset) if nbytes else torch.empty(0, dtype=kind)


def _views(flat: Any, layout: Sequence[FlatTensor]) -> list[Any]:
    return [flat[t.offset : t.offset + t.nbytes].view(t.dtype).view(t.shape) for t in layout]


class WeightsWriter:
    """The driver's side: writes versions into places in shared memory.

    Args:
        module: the module whose tensors will be published; gives names, shapes and dtypes.
        memory: buffer that holds ``places`` blocks from ``offset`` on.
        offset: where the first block begins, in bytes.
        places: how many versions can lie there at once.
    """

    def __init__(self, module: Any, memory: Any, offset: int, places: int) -> None:
        self._layout, nbytes = flat_layout(module)
        self._blocks = [memoryview(memory)[offset + i * nbytes : offset + (i + 1) * nbytes] for i in range(places)]
        self._names = [t.name for t in self._layout]
        state = module.state_dict(keep_vars=True)
        self._not_persistent = set(self._names) - set(state)
        self._tied = set(state) - set(self._names)
        names = {id(tensor): name for name, tensor in tensors_of(module).items()}
        self._names_in_state_dict = {key: names[id(value)] for key, value in state.items() if id(value) in names}
        self._places = [_views(_flat(memory, offset + i * nbytes, nbytes), self._layout) for i in range(places)]

    def block(self, place: int) -> memoryview:
        """The bytes of the version at a place."""
        return self._blocks[place]

    def write(self, source: Any, place: int, previous: int | None) -> None:
        """Copy a module's tensors, or a state dict's, to a place.

        Args:
            source: a module like the one given at first, or its state dict. Buffers that are not in a state dict keep
                their values of the place ``previous``.
            place: where to.
            previous: the place of the version before, or ``None``.

        Raises:
            ConfigurationError: names, shapes or dtypes differ from those of the first module.
        """
        import torch

        views = self._places[place]
        tensors = self._checked(tensors_of(source) if is_module(source) else dict(source), views, source)
        if previous is not None:
            tensors = [old if new is None else new for new, old in zip(tensors, self._places[previous], strict=True)]
        if views:
            with torch.no_grad():
                torch._foreach_copy_(views, tensors)

    def state_dict(self, place: int) -> dict[str, Any]:
        """What lies in a place, in copies: what ``load_state_dict`` of such a module takes."""
        views = dict(zip(self._names, self._places[place], strict=True))
        return {key: views[name].clone() for key, name in self._names_in_state_dict.items()}

    def _checked(self, given: Mapping[str, Any], views: Sequence[Any], source: Any) -> list[Any]:
        optional = set() if is_module(source) else self._not_persistent
        missing = [name for name in self._names if name not in given and name not in optional]
        unexpected = [name for name in given if name not in self._names and name not in self._tied]
        if missing or unexpected:
            raise ConfigurationError(
                f"what was published is not the policy that the pool was made with: missing {missing}, "
                f"unexpected {unexpected}. Publish a module of the same architecture, or its state dict"
            )
        tensors = [given.get(name) for name in self._names]
        for name, tensor, view in zip(self._names, tensors, views, strict=True):
            if tensor is not None and (tensor.shape != view.shape or tensor.dtype != view.dtype):
                raise ConfigurationError(
                    f"the published tensor {name!r} is {tuple(tensor.shape)} {tensor.dtype}, "
                    f"but the pool was made with {tuple(view.shape)} {view.dtype}"
                )
        return tensors


class WeightsReader:
    """A worker's side: puts one flat block behind a module and fills it from shared memory.

    Args:
        module: the worker's copy of the module; its tensors become views of the block.
        memory: the shared memory.
        offset: where the first version lies, in bytes.
        device: where the module is.
    """

    def __init__(self, module: Any, memory: Any, offset: int, device: str) -> None:
        import torch

        layout, self._nbytes = flat_layout(module)
        self._memory, self._offset = memory, offset
        self._flat = torch.empty(self._nbytes, dtype=torch.uint8, device=device)
        with torch.no_grad():
            for tensor, view in zip(tensors_of(module).values(), _views(self._flat, layout), strict=True):
                view.copy_(tensor)
                tensor.data = view

    def load(self, place: int) -> None:
        """Copy the version at a place behind the module."""
        self._flat.copy_(_flat(self._memory, self._offset + place * self._nbytes, self._nbytes))


class SharedWeights:
    """A worker's side of a version that stays: the module's parameters are those in shared memory, and no copy.

    Its buffers are copies, since a module may write to them while it acts. On another device than the CPU all are.

    Args:
        module: the worker's copy of the module.
        memory: the shared memory.
        offset: where the first version lies, in bytes.
        device: where the module acts.
    """

    def __init__(self, module: Any, memory: Any, offset: int, device: str) -> None:
        self._module, self._memory, self._offset, self._device = module.to(device), memory, offset, device
        self._layout, self._nbytes = flat_layout(module)

    def load(self, place: int) -> None:
        """Have the module be the version at a place, which must stay there."""
        flat = _flat(self._memory, self._offset + place * self._nbytes, self._nbytes)
        parameters = dict(self._module.named_parameters())
        for (name, tensor), view in zip(tensors_of(self._module).items(), _views(flat, self._layout), strict=True):
            tensor.data = view.to(self._device) if name in parameters else view.to(self._device, copy=True)
