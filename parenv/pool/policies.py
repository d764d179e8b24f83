"""Policies of a pool by name: their checks, and the copies that versions are written into."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from parenv.argument_checks import is_callable
from parenv.errors import ConfigurationError
from parenv.options import Parallelism
from parenv.policy.devices import on_device
from parenv.policy.policy import Policy, as_policy, infos_needed
from parenv.policy.snapshots import module_of, modules_of, tensors_of


def check_policies(named: Mapping[str, Any] | None, policy_of: Any, parallelism: Parallelism) -> None:
    """Check policies and their names.

    Args:
        named: Policies by name, or ``None`` for a single policy without a name.
        policy_of: Function that returns the policy of an agent, or ``None``.
        parallelism: ``"experience"`` or ``"gradient"``.

    Raises:
        ConfigurationError: A name or a policy is wrong, or ``policy_of`` does not fit.
    """
    if named is None:
        if policy_of is not None:
            raise ConfigurationError(
                'policy_of is for policies by name: AsyncWorkerPool(env_fn, {"runner": policy, ...})'
            )
        return
    if not named:
        raise ConfigurationError("there are no policies: give at least one by name")
    for name, policy in named.items():
        _check_name(name)
        try:
            as_policy(policy)
        except ConfigurationError as error:
            raise ConfigurationError(f"policy {name!r}: {error}") from None
    if policy_of is None and len(named) > 1:
        raise ConfigurationError(
            f"there are {len(named)} policies, so policy_of=(agent, episode) -> name must say who acts by which"
        )
    is_callable("policy_of", policy_of, "a callable (agent, episode) -> name")
    if parallelism == "gradient":
        _check_parameters(named)


def policies_for(policies: Mapping[str, Any], infos: Sequence[str]) -> dict[str, Any]:
    """Return the policies on the CPU, without shared tensors.

    Args:
        policies: Policies by name.
        infos: Names of the infos that the pool stores.

    Raises:
        ConfigurationError: A policy takes an info that the pool does not store.
    """
    for policy in policies.values():
        _check_infos_needed(as_policy(policy), infos)
    return _apart({name: on_device(policy, "cpu") for name, policy in policies.items()})


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"the names of policies are texts, got {name!r}")
    if "@" in name:
        raise ConfigurationError(f'a policy cannot be called {name!r}: names with "@" are those of frozen versions')


def _check_parameters(policies: Mapping[str, Any]) -> None:
    owners: dict[int, str] = {}
    for name, module in modules_of(policies).items():
        for parameter in module.parameters():
            other = owners.setdefault(id(parameter), name)
            if parameter.requires_grad and other != name:
                raise ConfigurationError(
                    f"the policies {other!r} and {name!r} share parameters, and a gradient is that of one policy: have "
                    f"policy_of name one of them for the agents of both, or give {name!r} a copy of its own"
                )


def _apart(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policies, with copies of what several of them share: workers write versions of each into it."""
    seen: set[int] = set()
    apart = {}
    for name, policy in policies.items():
        module = module_of(policy)
        mine = {id(policy), *map(id, () if module is None else tensors_of(module).values())}
        apart[name] = copy.deepcopy(policy) if mine & seen else policy
        seen |= mine
    return apart


def _check_infos_needed(policy: Policy, infos: Sequence[str]) -> None:
    if absent := sorted(infos_needed(policy) - set(infos)):
        raise ConfigurationError(
            f"infos must name {absent}, which the policy takes without a default, got {infos!r}. "
            f"Pass infos={(*infos, *absent)!r}, or give the parameters defaults"
        )
