"""Average gradients over the processes of a learner, for data-parallel training without a wrapped module."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from parenv.errors import ConfigurationError
from parenv.protocol.tensors import plain_name

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

_checked: WeakSet[nn.Module] = WeakSet()


def all_reduce_gradients(module: nn.Module, group: ProcessGroup | None = None) -> None:
    """Average the gradients of a module over the processes of ``torch.distributed``, in place.

    Call it on every rank between ``backward()`` and the optimizer's step. It uses one all-reduce per dtype and device.
    A parameter without a gradient on this rank counts as zeros, and gets the mean if another rank has a gradient.
    Without a process group, or with one process in it, nothing happens. Replicas that begin with the same weights stay
    equal. Gradients must be dense.

    Args:
        module: Module with the same parameters in the same order on every rank. The first call for a module compares
            them.
        group: Process group. Default: all ranks.

    Raises:
        ConfigurationError: Names, shapes or dtypes differ between ranks. Every rank raises it.
    """
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) < 2:
        return
    if module not in _checked:
        _check_same_on_all_ranks(module, group)
        _checked.add(module)
    alike: dict[Any, list[Tensor]] = {}
    for parameter in module.parameters():
        alike.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    with torch.no_grad():
        for parameters in alike.values():
            _average(parameters, group)


def _average(parameters: Sequence[Tensor], group: ProcessGroup | None) -> None:
    """Reduce all gradients at once, together with a mark for each parameter that has a gradient."""
    import torch
    import torch.distributed as dist

    marks = parameters[0].new_tensor([parameter.grad is not None for parameter in parameters])
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), marks])
    # The division comes first, because the sum may overflow float16.
    flat /= dist.get_world_size(group)
    dist.all_reduce(flat, group=group)
    *means, marks = torch.split(flat, [*(parameter.numel() for parameter in parameters), len(parameters)])
    for parameter, mean, somebody_has_one in zip(parameters, means, marks, strict=True):
        if parameter.grad is not None:
            parameter.grad.copy_(mean.view_as(parameter))
        elif somebody_has_one:
            parameter.grad = mean.view_as(parameter).clone()


def _check_same_on_all_ranks(module: nn.Module, group: ProcessGroup | None) -> None:
    import torch
    import torch.distributed as dist

    names = [f"{plain_name(name)} {tuple(p.shape)} {p.dtype}" for name, p in module.named_parameters()]
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    mine = torch.tensor(list(hashlib.sha256("\n".join(names).encode()).digest()), dtype=torch.uint8, device=device)
    digests = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(digests, mine, group=group)
    if different := [rank for rank, digest in enumerate(digests) if not torch.equal(digest, digests[0])]:
        raise ConfigurationError(
            "all_reduce_gradients needs the same parameters on every rank, but these ranks differ from rank 0: "
            f"{different}. Rank {dist.get_rank(group)} has {len(names)}: {_shortened(names)}. Build the module the "
            "same way on every rank."
        )


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
