"""Policies by name. If one has a factory, each process makes it itself."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from parenv.envs.seeding import RandomState
from parenv.errors import ConfigurationError
from parenv.policy.policy import PolicyFactory, as_policy
from parenv.policy.snapshots import module_of, modules_of, tensors_of

_KNOWN = weakref.WeakSet[Any]()
"""Modules that factories have made in this process. A worker writes into the tensors of its own, so each is new."""


def made(policy: Any) -> Any:
    """Return the policy that a factory makes for the main process, or the argument itself if it is no factory.

    Raises:
        ConfigurationError: The factory did not make a policy.
    """
    if not isinstance(policy, PolicyFactory):
        return policy
    found = _called(policy)
    if (module := module_of(found)) is not None:
        _KNOWN.add(module)
    return found


class MadePolicies(Mapping[str, Any]):
    """Policies by name.

    A pickle contains the factories instead of the policies that they have made, and the tensors of these policies. The
    process that reads the pickle makes a policy when it first needs it, and copies the tensors into it.

    Args:
        policies: Policies by name. A factory stands for a policy that is not made yet.
        factories: Factories by the name of their policy. Default: none.
        tensors: Parameters and buffers of the policies that are not made yet.
    """

    def __init__(
        self,
        policies: Mapping[str, Any],
        factories: Mapping[str, PolicyFactory] = {},
        tensors: Mapping[str, Mapping[str, Any]] = {},
    ) -> None:
        self._policies, self._factories, self._tensors = dict(policies), dict(factories), dict(tensors)

    def __getitem__(self, name: str) -> Any:
        self._policies[name] = made_again(self._policies[name], self._tensors.pop(name, {}))
        return self._policies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def __contains__(self, name: object) -> bool:
        return name in self._policies  # The method of the base class would make the policy.

    def __reduce__(self) -> tuple[Any, ...]:
        modules = modules_of({name: self[name] for name in self._factories})
        tensors = {name: _detached(tensors_of(module)) for name, module in modules.items()}
        return MadePolicies, (self.sources, self._factories, tensors)

    @property
    def sources(self) -> dict[str, Any]:
        """Factories and other policies by name, as a pickle contains them."""
        return {**self._policies, **self._factories}


def _detached(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _called(factory: PolicyFactory) -> Any:
    found = factory.make()
    try:
        as_policy(found)
    except ConfigurationError as error:
        raise ConfigurationError(f"the function of PolicyFactory did not return a policy: {error}") from None
    return found


def made_again(policy: Any, tensors: Mapping[str, Any] = {}) -> Any:
    """Return the policy that a factory makes for a worker, with these tensors, or another policy as it is.

    The random states of the worker stay as they are, whenever it makes a policy.

    Raises:
        ConfigurationError: The factory did not make a new policy with the same tensors.
    """
    if not isinstance(policy, PolicyFactory):
        return policy
    with RandomState(0):
        policy = _called(policy)
    module = module_of(policy)
    own = {} if module is None else tensors_of(module)
    if {name: (one.shape, one.dtype) for name, one in own.items()} != {
        name: (one.shape, one.dtype) for name, one in tensors.items()
    }:
        raise ConfigurationError(
            "the function of PolicyFactory must make the same parameters and buffers in each call, but first made "
            f"{_described(tensors)} and now {_described(own)}. Let it depend on nothing that changes."
        )
    if module is None:
        return policy
    if module in _KNOWN:
        raise ConfigurationError(
            f"the function of PolicyFactory must make a new module in each call, got the same {type(module).__name__} "
            "twice. Make the module inside the function."
        )
    _KNOWN.add(module)
    import torch

    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
    return policy


def _described(tensors: Mapping[str, Any]) -> str:
    return str({name: f"{tuple(one.shape)} {one.dtype}" for name, one in tensors.items()})
