"""From the arguments of a pool whose policies have names to a job that has been checked."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from parenv.argument_checks import is_callable
from parenv.errors import ConfigurationError
from parenv.policy.devices import on_device
from parenv.policy.policy import as_policy
from parenv.policy.snapshots import module_of, modules_of, tensors_of
from parenv.pool.arena import weights_places
from parenv.pool.arguments import PoolArguments
from parenv.worker.job import AgentsJob


def check_policies(given: PoolArguments, policies: Mapping[str, Any]) -> None:
    """Check policies by name, and that nothing is asked for that is not done with them.

    Raises:
        ConfigurationError: something is wrong; the message says what would be right.
    """
    if not policies:
        raise ConfigurationError("there are no policies: give at least one by name")
    for name, policy in policies.items():
        _check_name(name)
        try:
            as_policy(policy)
        except ConfigurationError as error:
            raise ConfigurationError(f"policy {name!r}: {error}") from None
    if given.policy_of is None and len(policies) > 1:
        raise ConfigurationError(
            f"there are {len(policies)} policies, so policy_of=(agent, episode) -> name must say who acts by which"
        )
    is_callable("policy_of", given.policy_of, "a callable (agent, episode) -> name")
    if given.parallelism == "gradient":
        _check_parameters(policies)
    _check_not_yet(given)


def agents_job(given: PoolArguments, **arguments: Any) -> AgentsJob:
    """The job of a pool with policies by name.

    Args:
        given: the arguments of the pool.
        **arguments: of the job, as of any other pool.
    """
    policies = _apart({name: on_device(policy, "cpu") for name, policy in arguments.pop("policy").items()})
    settings = arguments.pop("settings")
    ahead = 1 if given.mode == "sync" else 1 + given.prefetch
    return AgentsJob(
        **arguments,
        policy=policies,
        settings=dict.fromkeys(policies, settings) if settings else {},
        policy_of=given.policy_of,
        places=weights_places(modules_of(policies).values(), len(arguments["shares"]) * ahead + 2) + given.max_frozen,
    )


def _apart(policies: Mapping[str, Any]) -> dict[str, Any]:
    """The policies, what some have in common copied: each has versions of its own, which workers write into it."""
    seen: set[int] = set()
    apart = {}
    for name, policy in policies.items():
        module = module_of(policy)
        mine = {id(policy), *map(id, () if module is None else tensors_of(module).values())}
        apart[name] = copy.deepcopy(policy) if mine & seen else policy
        seen |= mine
    return apart


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


def _check_not_yet(given: PoolArguments) -> None:
    refused = {
        'rollout_length="episode", since agents end at different times: give a rollout_length of as many steps as an '
        "episode has, and leave out of the loss what has not ended": given.rollout_length == "episode",
        "spaces=, since workers say those of every agent: leave it out": given.spaces is not None,
    }
    for what, is_given in refused.items():
        if is_given:
            raise ConfigurationError(f"policies by name do not go together with {what}")
