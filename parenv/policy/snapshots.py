"""Transfer of policy versions to the workers.

All parameters and buffers of a torch module form one flat block. The main process writes a block into shared memory. A
worker copies it at once into the memory of its own module. A policy without a module is pickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError
from parenv.memory.layout import aligned
from parenv.policy.policy import is_module
from parenv.protocol.tensors import plain_name

ONE_THREAD_BYTES = 8 << 20
"""Size up to which one thread copies a version. The threads of torch wait for one another, which takes milliseconds if
workers use all cores."""
TORCH_GRAIN = 1 << 15
"""Number of values from which on torch copies a tensor in several threads."""


@dataclass(frozen=True)
class FlatTensor:
    """The place of one parameter or buffer in the flat block."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    offset: int
    nbytes: int


def module_of(policy: Any) -> Any:
    """Return the torch module whose tensors change between versions, or ``None``."""
    return policy if is_module(policy) else getattr(policy, "module", None)


def modules_of(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Return the modules by name of their policy, without the policies that have none."""
    modules = {name: module_of(policy) for name, policy in policies.items()}
    return {name: module for name, module in modules.items() if module is not None}


def tensors_of(module: Any) -> dict[str, Any]:
    """Return all parameters and buffers of a module, each once, by the name that it has if nothing is compiled.

    Raises:
        ConfigurationError: A lazy module has not been called.
    """
    from torch.nn.parameter import is_lazy

    tensors = {plain_name(name): tensor for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    if lazy := next((name for name, tensor in tensors.items() if is_lazy(tensor)), None):
        raise ConfigurationError(
            f"the tensor {lazy!r} of the policy must have a shape, but its lazy module has not been called. Call the "
            "module once with a batch of observations before you pass it."
        )
    return tensors


def flat_layout(module: Any) -> tuple[tuple[FlatTensor, ...], int]:
    """Lay out all parameters and buffers of a module; return the layout and the size of the block in bytes.

    Raises:
        ConfigurationError: A tensor is not dense.
    """
    placed, offset = [], 0
    for name, tensor in tensors_of(module).items():
        if tensor.is_sparse or tensor.is_quantized or tensor.is_meta:
            raise ConfigurationError(
                f"the tensor {name!r} of the policy must be dense to be published, got {tensor.layout} on "
                f"{tensor.device}. Make it dense."
            )
        nbytes = tensor.numel() * tensor.element_size()
        placed.append(FlatTensor(name, tuple(tensor.shape), tensor.dtype, offset, nbytes))
        offset = aligned(offset + nbytes)
    return tuple(placed), offset


def float32_parts(module: Any) -> tuple[tuple[int, int], ...]:
    """Return ``(begin, stop)`` of the parts of the flat block that hold only float32, in order."""
    import torch

    parts: list[tuple[int, int]] = []
    for tensor in flat_layout(module)[0]:
        if tensor.dtype == torch.float32 and tensor.nbytes:
            stop = aligned(tensor.offset + tensor.nbytes)
            begins_behind = parts and parts[-1][1] == tensor.offset
            parts.append((parts.pop()[0] if begins_behind else tensor.offset, stop))
    return tuple(parts)


def _flat(memory: Any, offset: int, nbytes: int) -> Any:
    """Return a tensor over bytes of a memory. ``torch.frombuffer`` refuses zero bytes."""
    import torch

    kind: Any = torch.uint8
    return torch.frombuffer(memory, dtype=kind, count=nbytes, offset=offset) if nbytes else torch.empty(0, dtype=kind)


def _views(flat: Any, layout: Sequence[FlatTensor]) -> list[Any]:
    return [flat[t.offset : t.offset + t.nbytes].view(t.dtype).view(t.shape) for t in layout]


def _copy(views: Sequence[Any], tensors: Sequence[Any], in_one_thread: bool) -> None:
    """Copy tensors into views of shared memory."""
    import torch

    rest: tuple[list[Any], list[Any]] = [], []
    for view, tensor in zip(views, tensors, strict=True):
        if in_one_thread and view.numel() >= TORCH_GRAIN and tensor.is_cpu and view.dtype in _of_numpy():
            np.copyto(view.numpy(), tensor.detach().numpy())
        else:
            rest[0].append(view)
            rest[1].append(tensor)
    if rest[0]:
        torch._foreach_copy_(*rest)


@lru_cache(maxsize=1)
def _of_numpy() -> frozenset[Any]:
    import torch

    return frozenset((torch.float16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8))


class WeightsWriter:
    """Writes versions into places in shared memory, in the main process.

    Args:
        module: Module with the names, shapes and dtypes of the tensors.
        memory: Shared memory.
        offset: Begin of the first block in bytes.
        places: Number of blocks, each for one version.
    """

    def __init__(self, module: Any, memory: Any, offset: int, places: int) -> None:
        self._layout, nbytes = flat_layout(module)
        self._blocks = [memoryview(memory)[offset + i * nbytes : offset + (i + 1) * nbytes] for i in range(places)]
        self._names = [t.name for t in self._layout]
        state = module.state_dict(keep_vars=True)
        plain = set(map(plain_name, state))
        self._not_persistent = set(self._names) - plain
        self._tied = plain - set(self._names)
        names = {id(tensor): name for name, tensor in tensors_of(module).items()}
        self._names_in_state_dict = {key: names[id(value)] for key, value in state.items() if id(value) in names}
        self._places = [_views(_flat(memory, offset + i * nbytes, nbytes), self._layout) for i in range(places)]

    def block(self, place: int) -> memoryview:
        """Return the bytes of the version at a place."""
        return self._blocks[place]

    def write(self, source: Any, place: int, previous: int | None) -> None:
        """Copy the tensors of a module or a state dict to a place.

        Args:
            source: Module like the first one, or its state dict. A buffer that a state dict lacks keeps its value from
                the place ``previous``.
            place: Place to write.
            previous: Place of the previous version, or ``None``.

        Raises:
            ConfigurationError: Names, shapes or dtypes differ from the first module.
        """
        import torch

        views = self._places[place]
        given = tensors_of(source) if is_module(source) else {plain_name(name): value for name, value in source.items()}
        tensors = self._checked(given, views, source)
        if previous is not None:
            tensors = [old if new is None else new for new, old in zip(tensors, self._places[previous], strict=True)]
        if views:
            with torch.no_grad():
                _copy(views, tensors, in_one_thread=len(self._blocks[place]) <= ONE_THREAD_BYTES)

    def state_dict(self, place: int) -> dict[str, Any]:
        """Return a copy of a place, as a state dict of the module."""
        views = dict(zip(self._names, self._places[place], strict=True))
        return {key: views[name].clone() for key, name in self._names_in_state_dict.items()}

    def _checked(self, given: Mapping[str, Any], views: Sequence[Any], source: Any) -> list[Any]:
        optional = set() if is_module(source) else self._not_persistent
        missing = [name for name in self._names if name not in given and name not in optional]
        unexpected = [name for name in given if name not in self._names and name not in self._tied]
        if missing or unexpected:
            raise ConfigurationError(
                f"the published policy must have the tensors of the pool's policy, but {missing} are missing and "
                f"{unexpected} are unexpected. Publish a module of the same architecture, or its state dict."
            )
        tensors = [given.get(name) for name in self._names]
        for name, tensor, view in zip(self._names, tensors, views, strict=True):
            if tensor is not None and (tensor.shape != view.shape or tensor.dtype != view.dtype):
                raise ConfigurationError(
                    f"the published tensor {name!r} must have shape {tuple(view.shape)} and dtype {view.dtype} as in "
                    f"the pool's policy, got {tuple(tensor.shape)} and {tensor.dtype}"
                )
        return tensors


class WeightsReader:
    """Loads versions into a module of a worker, whose tensors become views of one flat block.

    Args:
        module: The worker's copy of the module.
        memory: Shared memory.
        offset: Begin of the first version in bytes.
        device: Device of the module.
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
        """Copy the version at a place into the module."""
        self._flat.copy_(_flat(self._memory, self._offset + place * self._nbytes, self._nbytes))


class SharedWeights:
    """Loads a frozen version without a copy: the module's parameters are views of shared memory.

    Buffers are copied, because a module may write to them while it acts. On other devices everything is copied.

    Args:
        module: The worker's copy of the module.
        memory: Shared memory.
        offset: Begin of the first version in bytes.
        device: Device of the module.
    """

    def __init__(self, module: Any, memory: Any, offset: int, device: str) -> None:
        self._module, self._memory, self._offset, self._device = module.to(device), memory, offset, device
        self._layout, self._nbytes = flat_layout(module)

    def load(self, place: int) -> None:
        """Use the version at a place, which must stay there."""
        flat = _flat(self._memory, self._offset + place * self._nbytes, self._nbytes)
        parameters = {plain_name(name) for name, _ in self._module.named_parameters()}
        for (name, tensor), view in zip(tensors_of(self._module).items(), _views(flat, self._layout), strict=True):
            tensor.data = view.to(self._device) if name in parameters else view.to(self._device, copy=True)
