"""Ensemble: several critics or actors of one architecture in one batched forward."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from parenv.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor, nn

    _Module = nn.Module
else:
    # Importing this module must not import torch: `_with_torch` adds the real base class for the first ensemble.
    _Module = object


class Ensemble(_Module):
    """``M`` modules of the same architecture as one ``nn.Module``, whose forward runs all of them as one batch.

    ``members`` is a module of this architecture with stacked parameters and buffers, ``[M, *shape]``. An optimizer of
    ``parameters()`` trains all members, and a soft update or ``load_state_dict`` changes all members. Dropout and other
    randomness differ between members. The original modules are copied and not changed.

    Args:
        modules: At least one module. All have the same structure, shapes, dtypes, device, ``training`` and
            ``requires_grad``.

    Raises:
        ConfigurationError: There are no modules, they have no parameters and buffers, or they differ.

    >>> import torch
    >>> critics = Ensemble([torch.nn.Linear(3, 1) for _ in range(2)])
    >>> critics(torch.zeros(5, 3)).shape, critics.minimum(torch.zeros(5, 3)).shape
    (torch.Size([2, 5, 1]), torch.Size([5, 1]))
    """

    members: nn.Module

    def __new__(cls, *_: Any, **__: Any) -> Ensemble:
        """Make an instance of a subclass of ``nn.Module``."""
        return super().__new__(_with_torch(cls))  # type: ignore[arg-type]

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        super().__init__()
        from torch.func import stack_module_state

        modules = list(modules)
        _check_alike(modules)
        parameters, buffers = stack_module_state(modules)
        stacked = {**parameters, **buffers}
        self.num_members = len(modules)
        self.members = _with_tensors(modules[0], lambda name, _: stacked[name].detach())

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty, (type(self).__bases__[0],), self.__dict__.copy()

    def forward(self, *args: Any) -> Any:
        """Run all members on the same inputs.

        Args:
            *args: Arguments of one module.

        Returns:
            Outputs nested as the output of one module, each tensor ``[M, ...]``.
        """
        from torch.func import functional_call, vmap

        def run(state: dict[str, Tensor]) -> Any:
            return functional_call(self.members, state, args)

        return vmap(run, randomness="different")(_named_tensors(self.members))

    def mean(self, *args: Any) -> Tensor:
        """Return the mean of the members' outputs, in the shape of one output."""
        outputs: Tensor = self(*args)
        return outputs.mean(dim=0)

    def minimum(self, *args: Any) -> Tensor:
        """Return the elementwise minimum of the members' outputs, in the shape of one output.

        For two critics, this is clipped double Q-learning (Fujimoto et al. 2018, arXiv:1802.09477, section 4.2).
        """
        outputs: Tensor = self(*args)
        return outputs.amin(dim=0)

    def unstacked(self) -> list[nn.Module]:
        """Return the members as separate modules, with copies of the present weights."""
        return [
            _with_tensors(self.members, lambda _, tensor, index=index: tensor[index].clone())  # type: ignore[misc]
            for index in range(self.num_members)
        ]


@functools.cache
def _with_torch(cls: type[Ensemble]) -> type[Ensemble]:
    from torch import nn

    return type(cls.__name__, (cls, nn.Module), {"__module__": cls.__module__, "__doc__": cls.__doc__})


def _empty(cls: type[Ensemble]) -> Ensemble:
    """Make an instance for unpickling, because pickle cannot find the class with torch by its name."""
    return cls.__new__(cls)


def _with_tensors(module: nn.Module, replaced: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """Return a copy of the module with other tensors. Tied tensors stay tied."""
    copied = copy.deepcopy(module)
    for name, tensor in _named_tensors(copied).items():
        tensor.data = replaced(name, tensor.data)
    return copied


def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by the names that torch gives them."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _check_alike(modules: Sequence[nn.Module]) -> None:
    if not modules:
        raise ConfigurationError("an Ensemble needs at least one module, got none. Pass a list of modules.")
    first = _architecture(modules[0])
    if not _named_tensors(modules[0]):
        raise ConfigurationError(
            "an Ensemble needs modules with parameters or buffers, got one that has none. Leave it out."
        )
    for index, module in enumerate(modules):
        other = _architecture(module)
        for name in {**first, **other}:
            if first.get(name) != other.get(name):
                raise ConfigurationError(
                    f"an Ensemble needs modules of one architecture, but modules[{index}] differs from modules[0] "
                    f"in {name}: {other.get(name)} instead of {first.get(name)}"
                )


def _architecture(module: nn.Module) -> dict[str, Any]:
    layout = {
        name: (tuple(tensor.shape), tensor.dtype, str(tensor.device), f"requires_grad={tensor.requires_grad}")
        for name, tensor in _named_tensors(module).items()
    }
    return {"its structure": repr(module), "its training mode": module.training, **layout}
