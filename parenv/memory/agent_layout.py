"""What a rollout slot of several agents holds: side by side, rows of sub-environments and rows of agents.

Agents with the same spaces make a group. A group lies as a rollout of its own does, with a row of each of its agents
for every sub-environment, so that all that is known of a rollout's fields holds for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from gymnasium import spaces

from parenv.memory.layout import (
    NO_DEFAULTS,
    ROLLOUT_FIELDS,
    Axes,
    Extra,
    Field,
    RolloutSpec,
    SlotLayout,
    aligned,
    extras_and_carry,
    infos_from_data,
    leaves_from_data,
    place,
    slot_layout,
)
from parenv.memory.spaces import Leaf, each_once, leaves

NOBODY = -1
"""As the policy of a row: its agent is not there."""


@dataclass(frozen=True)
class RowGroup:
    """Rows of one kind.

    Args:
        agents: those that have a row in every sub-environment; for the sub-environments themselves, one without a name.
        spec: what lies there.
    """

    agents: tuple[str, ...]
    spec: RolloutSpec


class PolicyFound(NamedTuple):
    """What a policy was found to add to the rows of its agents.

    Args:
        group: theirs, by index.
        extras: what it returns.
        carry: leaves of its carry.
    """

    group: int
    extras: tuple[Extra, ...]
    carry: tuple[Leaf, ...]


@dataclass(frozen=True)
class AgentsSpec:
    """What every rollout of several agents consists of.

    Args:
        groups: the sub-environments themselves, then the agents by their spaces.
        policies: names of the policies, in the order of their indices.
        found: of each, what it adds.
        turns: whether agents act one after the other.
    """

    groups: tuple[RowGroup, ...]
    policies: tuple[str, ...]
    found: Mapping[str, PolicyFound]
    turns: bool

    @property
    def rollout_length(self) -> int:
        """``T``."""
        return self.groups[-1].spec.rollout_length

    @property
    def observations(self) -> tuple[Leaf, ...]:
        """Leaves of the observations of all agents of a sub-environment, one agent behind the other."""
        return tuple(leaf for group in self.groups[1:] for _ in group.agents for leaf in group.spec.observations)

    @cached_property
    def agent_rows(self) -> dict[str, tuple[int, int]]:
        """By agent, its group and its place among the agents of that."""
        return {
            agent: (index, place)
            for index, group in enumerate(self.groups[1:], start=1)
            for place, agent in enumerate(group.agents)
        }

    def stored(self, policy: str) -> dict[str, str]:
        """By what the policy calls an extra, the name under which it lies in the rows of its group."""
        mine = self.found[policy]
        there = {extra.name: extra for extra in self.groups[mine.group].spec.extras}
        return {
            extra.name: extra.name if there.get(extra.name) == extra else f"{policy}/{extra.name}"
            for extra in mine.extras
        }


def agents_spec(
    rollout_length: int,
    observation_spaces: spaces.Dict,
    action_spaces: spaces.Dict,
    policies: Sequence[str],
    about: Mapping[str, Any],
    gradient_bytes: int = 0,
    defaults: Mapping[str, Any] = NO_DEFAULTS,
) -> AgentsSpec:
    """Put together what rollouts consist of.

    Args:
        rollout_length: ``T``.
        observation_spaces: by agent.
        action_spaces: by agent.
        policies: names of the policies.
        about: what a worker has found out: ``state``, the leaf of ``env.state()`` or ``None``; ``turns``; ``infos``,
            of each group; and by policy ``found``: its group, extras and carry.
        gradient_bytes: the flat gradient that each worker adds.
        defaults: of infos, by name.
    """
    agents = tuple(observation_spaces.spaces)
    found = {
        name: PolicyFound(group, *extras_and_carry(extras, carry))
        for name, (group, extras, carry) in about["found"].items()
    }
    own_length = rollout_length * len(agents) if about["turns"] else rollout_length
    of_envs = RolloutSpec(own_length, leaves_from_data(about["state"]), (), gradient_bytes=gradient_bytes)
    groups = [RowGroup(("",), replace(of_envs, of_agents=True, num_policies=len(policies)))]
    for index, mine in enumerate(agent_groups(observation_spaces, action_spaces), start=1):
        observed, acted = leaves(observation_spaces[mine[0]]), leaves(action_spaces[mine[0]])
        infos = infos_from_data(about["infos"][index - 1], defaults)
        spec = RolloutSpec(rollout_length, observed, acted, infos=infos)
        groups.append(RowGroup(mine, replace(_with_policies(spec, index, found), of_agents=True)))
    return AgentsSpec(tuple(groups), tuple(policies), found, about["turns"])


def agent_groups(observation_spaces: spaces.Dict, action_spaces: spaces.Dict) -> list[tuple[str, ...]]:
    """The agents, those with equal spaces together."""
    agents = list(observation_spaces.spaces)
    both = [spaces.Tuple([observation_spaces[agent], action_spaces[agent]]) for agent in agents]
    distinct, which = each_once(both)
    return [tuple(agent for agent, mine in zip(agents, which, strict=True) if mine == i) for i in range(len(distinct))]


def _with_policies(spec: RolloutSpec, index: int, found: Mapping[str, PolicyFound]) -> RolloutSpec:
    """With room for what each policy of a group adds: extras of one name and shape lie in one array."""
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


@dataclass(frozen=True)
class AgentsLayout:
    """All arrays of one slot, group by group.

    Args:
        layouts: of each group, where its arrays lie in the slot.
        reserved_bytes: the part that every rollout uses.
        total_bytes: the whole slot.
    """

    layouts: tuple[SlotLayout, ...]
    reserved_bytes: int
    total_bytes: int

    def arrays(self, buffer: Any) -> list[dict[tuple[str, Any], Any]]:
        """Of each group, every field as an array over ``buffer``, which holds one slot."""
        return [layout.arrays(buffer) for layout in self.layouts]


def agents_layout(spec: AgentsSpec, num_envs: int, num_workers: int) -> AgentsLayout:
    """Lay out a slot of ``num_envs`` sub-environments that ``num_workers`` workers fill."""
    alone = [slot_layout(group.spec, num_envs * len(group.agents), num_workers) for group in spec.groups]
    placed: list[list[Field]] = [[] for _ in alone]
    offset = reserved = 0
    for is_sparse in (False, True):
        for mine, layout in zip(placed, alone, strict=True):
            wanted = [f for f in layout.fields if (ROLLOUT_FIELDS[f.name[0]].axes is Axes.ENDS) == is_sparse]
            here, offset = place([(field.name, field.shape, field.dtype) for field in wanted], offset)
            mine.extend(here)
        reserved = reserved or offset
    layouts = tuple(SlotLayout(tuple(mine), reserved, offset) for mine in placed)
    return AgentsLayout(layouts, reserved, aligned(offset, 4096))
