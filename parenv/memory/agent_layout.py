"""Content of the slots of named policies: rows of sub-environments, and rows of agents.

Agents with the same spaces make a group. A group has a row of each of its agents for every sub-environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gymnasium import spaces

from parenv.memory.layout import (
    NO_DEFAULTS,
    Extra,
    PolicyFound,
    RolloutSpec,
    SlotSpec,
    extras_and_carry,
    infos_from_data,
    leaves_from_data,
)
from parenv.memory.spaces import Leaf, each_once, leaves

NOBODY = -1
"""Index of the policy of a row without its agent."""


def agents_spec(
    rollout_length: int,
    observation_spaces: spaces.Dict,
    action_spaces: spaces.Dict,
    policies: Sequence[str],
    about: Mapping[str, Any],
    gradient_bytes: int = 0,
    defaults: Mapping[str, Any] = NO_DEFAULTS,
) -> SlotSpec:
    """Return the content of a slot.

    Args:
        rollout_length: Number of rows in time, ``T``.
        observation_spaces: Observation space of each agent.
        action_spaces: Action space of each agent.
        policies: Names of the policies.
        about: Findings of a worker: ``state``, the leaves of ``env.state()``; ``turns``; ``infos`` of each group; and
            ``found``, the group, extras and carry of each policy.
        gradient_bytes: Bytes of the flat gradient that each worker adds.
        defaults: Defaults of infos, by name.
    """
    found = {
        name: PolicyFound(group, *extras_and_carry(extras, carry))
        for name, (group, extras, carry) in about["found"].items()
    }
    agents = observation_spaces.spaces
    own_length = rollout_length * len(agents) if about["turns"] else rollout_length
    groups = [RolloutSpec(own_length, leaves_from_data(about["state"]), (), gradient_bytes=gradient_bytes)]
    for index, mine in enumerate(agent_groups(observation_spaces, action_spaces), start=1):
        observed, acted = leaves(observation_spaces[mine[0]]), leaves(action_spaces[mine[0]])
        infos = infos_from_data(about["infos"][index - 1], defaults)
        spec = RolloutSpec(rollout_length, observed, acted, infos=infos, agents=mine)
        groups.append(_with_policies(spec, index, found))
    return SlotSpec(tuple(groups), tuple(policies), found, about["turns"])


def agent_groups(observation_spaces: spaces.Dict, action_spaces: spaces.Dict) -> list[tuple[str, ...]]:
    """Return the agents in groups with equal spaces."""
    agents = list(observation_spaces.spaces)
    both = [spaces.Tuple([observation_spaces[agent], action_spaces[agent]]) for agent in agents]
    distinct, which = each_once(both)
    return [tuple(agent for agent, mine in zip(agents, which, strict=True) if mine == i) for i in range(len(distinct))]


def _with_policies(spec: RolloutSpec, index: int, found: Mapping[str, PolicyFound]) -> RolloutSpec:
    """Return a group with the extras and the carry of its policies. Extras of one name and shape share an array."""
    extras: dict[str, Extra] = {}
    carry: list[Leaf] = []
    for policy, mine in found.items():
        if mine.group != index:
            continue
        for extra in mine.extras:
            if extras.setdefault(extra.name, extra) != extra:
                name = f"{policy}/{extra.name}"
                extras[name] = replace(extra, name=name)
        carry += [replace(leaf, path=(policy, *leaf.path)) for leaf in mine.carry]
    return replace(spec, extras=tuple(extras.values()), carry=tuple(carry))
