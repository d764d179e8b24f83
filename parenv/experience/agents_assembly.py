"""From the arrays of a slot of several agents to what each policy did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parenv.experience.agent_rollouts import AgentEpisodes, AgentRollout, RolloutsByPolicy
from parenv.experience.assembly import Arrays, infos_of, own_columns
from parenv.experience.rollout import Ends
from parenv.memory.agent_layout import NOBODY, AgentsSpec, RowGroup
from parenv.memory.spaces import unflatten
from parenv.memory.trees import map_trees


class Played(NamedTuple):
    """A policy that may have acted in a slot.

    Args:
        name: of it.
        of: the policy that it is a frozen version of, or itself.
        version: that acted.
        lag: of that, in publishes.
    """

    name: str
    of: str
    version: int
    lag: int


class _Found(NamedTuple):
    """What ended in a group: records, the numbers of their episodes, and the final observations."""

    records: Any
    numbers: Any
    finals: list[Any]


def assemble_agents(
    spec: AgentsSpec,
    arrays: Sequence[Arrays],
    widths: Sequence[int],
    played: Mapping[int, Played],
    env_ids: Any,
    worker: int | None,
    policy_version: int,
    num_steps: int,
    first: int = 0,
) -> RolloutsByPolicy:
    """Build the rollouts of a slot. Arrays are copied only where a policy has rows in no regular order.

    Args:
        spec: what the slot holds.
        arrays: those of each group.
        widths: sub-environments of each worker of the slot, in the order of their columns.
        played: by index, the policies that may have acted.
        env_ids: int64 ``[B]``.
        worker: the worker whose they are, or ``None``.
        policy_version: of all policies together.
        num_steps: env steps.
        first: where the arrays are those of one worker alone, its first sub-environment in the slot.
    """
    of_envs = _ends(arrays[0], widths, spec.groups[0], first)
    by_policy: dict[str, AgentRollout] = {}
    for index in range(1, len(spec.groups)):
        rows = _GroupOfRows(spec, index, arrays[index], widths, env_ids, worker, first)
        for number in rows.policies(played):
            by_policy[played[number].name] = rows.of(number, played[number])
    state = arrays[0].get(("observations", 0))
    steps, columns = (of_envs.records[name].astype(np.int64) for name in ("step", "column"))
    return RolloutsByPolicy(
        by_policy=dict(sorted(by_policy.items(), key=lambda item: "@" in item[0])),
        env_ids=env_ids,
        worker=worker,
        policy_version=policy_version,
        policy_lag=max((rollout.policy_lag for rollout in by_policy.values()), default=0),
        num_steps=num_steps,
        episodes=_episodes(of_envs.records, of_envs.numbers, env_ids[columns], [""] * len(columns)),
        states=None if state is None else state[:-1],
        shifted_states=None if state is None else state[1:],
        final_states=of_envs.finals[0] if of_envs.finals else None,
        final_index=(steps, columns),
    )


class _GroupOfRows:
    """The rows of a group in one slot."""

    def __init__(
        self,
        spec: AgentsSpec,
        index: int,
        arrays: Arrays,
        widths: Sequence[int],
        env_ids: Any,
        worker: int | None,
        first: int,
    ) -> None:
        self._spec, self._index, self._group, self._arrays = spec, index, spec.groups[index], arrays
        self._env_ids, self._worker = np.repeat(env_ids, len(self._group.agents)), worker
        self._acted, self._assigned = arrays["policies", 0], arrays["assigned", 0]
        self._ended = _ends(arrays, widths, self._group, first)

    def policies(self, played: Mapping[int, Played]) -> list[int]:
        """Those that learn and act in these rows, and the frozen ones that did so in this slot."""
        mine = [i for i, name in enumerate(self._spec.policies) if self._spec.found[name].group == self._index]
        frozen = set(np.unique(self._acted).tolist()) - {NOBODY, *mine}
        return mine + sorted(index for index in frozen if index in played)

    def of(self, number: int, played: Played) -> AgentRollout:
        """What a policy did."""
        arrays, spec, T = self._arrays, self._group.spec, self._group.spec.rollout_length
        rows = np.flatnonzero((self._acted == number).any(0) | (self._assigned == number))
        part = _regular(rows)
        observations = [arrays["observations", i][:, part] for i in range(len(spec.observations))]
        alive = self._acted[:, part] == number
        last_steps, last = self._last(rows)
        ends, episodes = self._ends_of(number, rows)
        stored = self._spec.stored(played.of)
        first = arrays["first_versions", 0][part]
        carry = unflatten(spec.carry, [arrays["carry", i] for i in range(len(spec.carry))]) if spec.carry else {}
        return AgentRollout(
            **{name: arrays[name, 0][:, part] for name in ("rewards", "terminated", "truncated")},
            observations=unflatten(spec.observations, [block[:T] for block in observations]),
            actions=unflatten(spec.actions, [arrays["actions", i][:, part] for i in range(len(spec.actions))]),
            last_observations=unflatten(spec.observations, last),
            extras={name: arrays["extras", at][:, part] for name, at in stored.items()},
            **infos_of(spec, lambda field, name: arrays[field, name][:, part]),
            initial_carry=map_trees(lambda values: values[part], carry[played.name]) if played.name in carry else None,
            env_ids=self._env_ids[part],
            worker=self._worker,
            policy_version=played.version,
            policy_lag=played.lag,
            restarted=arrays["restarted", 0][part],
            episodes=episodes,
            ends=[ends],
            shifted_observations=unflatten(spec.observations, [block[1:] for block in observations]),
            alive=alive,
            agents=[self._group.agents[row % len(self._group.agents)] for row in rows.tolist()],
            first_versions=np.where(first < 0, played.version, first),
            last_steps=last_steps,
        )

    def _last(self, rows: Any) -> tuple[Any, list[Any]]:
        """Of each row the step that its last observation follows, and that observation."""
        T = len(self._acted)
        counts = (self._acted[:, rows] != NOBODY).sum(0) if self._spec.turns else np.full(len(rows), T)
        blocks = [self._arrays["observations", i] for i in range(len(self._group.spec.observations))]
        return counts - 1, [block[counts, rows] for block in blocks]

    def _ends_of(self, number: int, rows: Any) -> tuple[Ends, AgentEpisodes]:
        records = self._ended.records
        mine = np.flatnonzero(self._acted[records["step"], records["column"]] == number)
        records, columns = records[mine], records["column"][mine]
        place = np.searchsorted(rows, columns)
        finals = unflatten(self._group.spec.observations, [block[mine] for block in self._ended.finals])
        ends = Ends(records["step"].astype(np.int64), place.astype(np.int64), finals)
        agents = [self._group.agents[column % len(self._group.agents)] for column in columns.tolist()]
        return ends, _episodes(records, self._ended.numbers[mine], self._env_ids[columns], agents)


def _ends(arrays: Arrays, widths: Sequence[int], group: RowGroup, first: int) -> _Found:
    """What ended in the rows of all workers, one worker behind the other."""
    parts, begin, width = [], 0, len(group.agents)
    for position, num_envs in enumerate(widths):
        count = int(arrays["commits", 0]["num_ends"][position])
        parts.append(np.arange(begin, begin + count))
        begin += group.spec.rollout_length * num_envs * width
    there = np.concatenate(parts)
    finals = [arrays[name][there] for name in arrays if name[0] == "finals"]
    records = arrays["ends", 0][there]
    records["column"] -= first * width
    return _Found(records, arrays["numbers", 0][there], finals)


def _episodes(records: Any, numbers: Any, env_ids: Any, agents: Sequence[str]) -> AgentEpisodes:
    return AgentEpisodes(*own_columns(records), env_ids, agents=agents, numbers=numbers)


def _regular(rows: Any) -> Any:
    """Rows at one distance from one another as a slice, so that they are not copied."""
    if len(rows) < 2:
        return slice(int(rows[0]), int(rows[0]) + 1) if len(rows) else slice(0, 0)
    distance = int(rows[1] - rows[0])
    if (np.diff(rows) == distance).all():
        return slice(int(rows[0]), int(rows[-1]) + 1, distance)
    return rows
