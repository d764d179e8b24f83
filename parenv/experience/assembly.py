"""Rollouts over the arrays of a slot: of one worker's columns or of a whole block, for one policy or for several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from parenv.experience.agent_rollouts import AgentEpisodes, AgentRollout, RolloutsByPolicy
from parenv.experience.endings import FIRST_LOST, endings_of
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.rollout import Ends, Rollout
from parenv.memory.agent_layout import NOBODY
from parenv.memory.layout import PLAIN, ROLLOUT_FIELDS, Axes, RolloutSpec, SlotSpec, part_of_slot
from parenv.memory.spaces import unflatten

Arrays = Mapping[tuple[str, Any], Any]
Take = Callable[[str, Any], Any]
"""``(field, key) -> part`` of an array of a slot."""

_NOWHERE, _NO = np.empty(0, np.int64), np.empty(0, np.bool_)


class Columns(NamedTuple):
    """Part of one worker in a slot.

    Args:
        position: Place of the worker among those of the slot.
        first: First column.
        stop: Column behind the last one.
        objects: Lists for the leaves without a fixed size, named as the arrays are: ``[T + 1][B]`` observations,
            ``[T][B]`` actions, ``[K]`` finals.
    """

    position: int
    first: int
    stop: int
    objects: Arrays = MappingProxyType({})


class Played(NamedTuple):
    """Policy that may have acted in a slot.

    Args:
        name: Name of the policy.
        of: Name of the policy that it is a frozen version of, or its own.
        version: Version that acted.
        lag: Lag of this version, in publishes.
    """

    name: str
    of: str
    version: int
    lag: int


def assemble(
    spec: RolloutSpec,
    arrays: Arrays,
    columns: Sequence[Columns],
    *,
    env_ids: Any,
    worker: int | None,
    policy_version: int,
    policy_lag: int,
    extras: Sequence[str],
) -> Rollout:
    """Build the rollout of adjacent columns of a slot. Only the few bytes of episode ends are copied.

    Args:
        spec: Content of the slot.
        arrays: Arrays of the slot.
        columns: Columns of each worker, in their order.
        env_ids: Sub-environments, int64 ``[B]``.
        worker: Worker that filled the columns, or ``None`` for several.
        policy_version: Version that acted.
        policy_lag: Lag of this version, in publishes.
        extras: Names of the extras that have been written.
    """
    position, first, _, objects = columns[0]
    part = part_of_slot(spec.rollout_length, position, first, columns[-1].stop)

    def take(name: str, key: Any) -> Any:
        if objects and (name, key) in objects:
            blocks = [mine.objects[name, key] for mine in columns]
            return [[item for row in rows for item in row] for rows in zip(*blocks, strict=True)]
        return arrays[name, key][part[name]]

    together = _ended_together(spec, arrays, columns) if len(columns) > 1 else None
    parts = [together] if together else [_ended(spec, arrays, mine, first, take) for mine in columns]
    some = [ended.records for ended in parts if len(ended.records)]
    resetting = take("resetting", 0)
    rollout = Rollout.when_read(
        _Fields(spec, take, [(name, name) for name in extras], parts).make,
        env_ids=env_ids,
        worker=worker,
        policy_version=policy_version,
        policy_lag=policy_lag,
        episodes=EpisodeStatistics.joined([episodes_of(records, env_ids) for records in some]),
        resetting=resetting,
        has_resets=_any(resetting) or any(_any(of["resets_next"]) or _any(of["void"]) for of in some),
    )
    if objects:
        rollout.read_all()  # The lists of a worker are filled again for its next rollout.
    return rollout


def assemble_agents(
    spec: SlotSpec,
    arrays: Sequence[Arrays],
    columns: Sequence[Columns],
    played: Mapping[int, Played],
    *,
    env_ids: Any,
    worker: int | None,
    policy_version: int,
    num_steps: int,
) -> RolloutsByPolicy:
    """Build the rollouts of adjacent sub-environments of a slot, by policy.

    Arrays are copied only if the rows of a policy are not at one distance from one another.

    Args:
        spec: Content of the slot.
        arrays: Arrays of each group.
        columns: Sub-environments of each worker, in their order.
        played: Policies that may have acted, by index.
        env_ids: Sub-environments, int64 ``[B]``.
        worker: Worker that filled the columns, or ``None`` for several.
        policy_version: Version of all policies together.
        num_steps: Number of env steps.
    """
    envs, *agents = (_Group(*group, columns, env_ids, worker) for group in zip(spec.groups, arrays, strict=True))
    by_policy = {
        played[number].name: rows.rollout(spec, number, played[number])
        for index, rows in enumerate(agents, start=1)
        for number in rows.policies(spec, index, played)
    }
    state = envs.take("observations", 0) if spec.groups[0].observations else None
    ends, episodes = envs.ends(slice(None), np.arange(len(env_ids)))
    return RolloutsByPolicy(
        by_policy=dict(sorted(by_policy.items(), key=lambda item: "@" in item[0])),
        env_ids=env_ids,
        worker=worker,
        policy_version=policy_version,
        policy_lag=max((rollout.policy_lag for rollout in by_policy.values()), default=0),
        num_steps=num_steps,
        episodes=episodes,
        states=None if state is None else state[:-1],
        shifted_states=None if state is None else state[1:],
        final_states=None if state is None else ends.observations,
        final_index=(ends.steps, ends.columns),
    )


class _Group:
    """Rows of one group in some columns of a slot, and what ended in them."""

    def __init__(
        self, spec: RolloutSpec, arrays: Arrays, columns: Sequence[Columns], env_ids: Any, worker: int | None
    ) -> None:
        self._agents, self._spec, self._arrays, self._worker = spec.agents, spec, arrays, worker
        T, width = spec.rollout_length, len(spec.agents)
        self._env_ids, first = np.repeat(env_ids, width), columns[0].first * width
        self._part = part_of_slot(T, columns[0].position, first, columns[-1].stop * width)
        self._acted = self.take("policies", 0)
        self._there = _places_of_ends(T * width, arrays, columns)
        self.records = arrays["ends", 0][self._there]
        self.records["column"] -= first

    def take(self, name: str, key: Any) -> Any:
        """Return the part of an array for these rows."""
        return self._arrays[name, key][self._part[name]]

    def policies(self, spec: SlotSpec, index: int, played: Mapping[int, Played]) -> list[int]:
        """Return the policies that learn and act in these rows, and the frozen ones that acted in this slot."""
        mine = [i for i, name in enumerate(spec.policies) if spec.found[name].group == index]
        frozen = set(np.unique(self._acted).tolist()) - {NOBODY, *mine}
        return mine + sorted(index for index in frozen if index in played)

    def rollout(self, spec: SlotSpec, number: int, played: Played) -> AgentRollout:
        """Return the rollout of a policy."""
        rows = np.flatnonzero((self._acted == number).any(0) | (self.take("assigned", 0) == number))
        part = _regular(rows)

        def take(name: str, key: Any) -> Any:
            is_row = ROLLOUT_FIELDS[name].axes is Axes.COLUMNS
            return self.take(name, key)[part if is_row else (slice(None), part)]

        make = _Fields(self._spec, take, spec.stored(played.of).items()).make
        fields = {name: make(name) for name in _OF_AGENTS}
        last_steps = np.full(len(rows), len(self._acted) - 1)
        if spec.turns:
            last_steps = (self._acted[:, rows] != NOBODY).sum(0) - 1
            last = [self.take("observations", i)[last_steps + 1, rows] for i in range(len(self._spec.observations))]
            fields["last_observations"] = unflatten(self._spec.observations, last)
        mine = np.flatnonzero(self._acted[self.records["step"], self.records["column"]] == number)
        ends, episodes = self.ends(mine, rows)
        first = take("first_versions", 0)
        return AgentRollout(
            **{**fields, "resetting": None},
            initial_carry=_carry(self._spec, take, played.name),
            env_ids=self._env_ids[part],
            worker=self._worker,
            policy_version=played.version,
            policy_lag=played.lag,
            episodes=episodes,
            ends=[ends],
            alive=take("policies", 0) == number,
            agents=self._agents_of(rows),
            first_versions=np.where(first < 0, played.version, first),
            last_steps=last_steps,
        )

    def ends(self, mine: Any, rows: Any) -> tuple[Ends, AgentEpisodes]:
        """Return some of the ends, by their places among all, with columns as places among some rows."""
        records, there = self.records[mine], self._there[mine]
        columns = records["column"]
        finals = [self._arrays["finals", i][there] for i in range(len(self._spec.observations))]
        place = np.searchsorted(rows, columns).astype(np.int64)
        observations = unflatten(self._spec.observations, finals) if finals else None
        ends = Ends(records["step"].astype(np.int64), place, observations)
        numbers = self._arrays["numbers", 0][there]
        return ends, AgentEpisodes(
            *_figures(records),
            self._env_ids[columns],
            endings_of(records["ended_by"]),
            agents=self._agents_of(columns),
            numbers=numbers,
        )

    def _agents_of(self, rows: Any) -> list[str]:
        return [self._agents[row % len(self._agents)] for row in rows.tolist()]


def assemble_rows(
    spec: RolloutSpec,
    take: Take,
    extras: Sequence[str],
    records: Any,
    finals: Sequence[Any],
    *,
    env_ids: Any,
    **about: Any,
) -> Rollout:
    """Build a rollout of rows that are all transitions.

    Args:
        spec: Content of the rows.
        take: Function that returns their part of an array.
        extras: Names of the extras that have been written.
        records: Episode ends, :data:`~parenv.memory.layout.END_DTYPE` ``[K]``.
        finals: Final observations, one array or list ``[K, ...]`` per leaf.
        env_ids: Sub-environments by column, int64 ``[B]``.
        **about: Worker, versions and lag of the rollout.
    """
    fields = _Fields(spec, take, [(name, name) for name in extras], [_Ended(records, lambda: finals)])
    episodes = episodes_of(records, env_ids)
    return Rollout.when_read(fields.make, has_resets=False, env_ids=env_ids, episodes=episodes, **about)


class _Fields:
    """Makes the fields of a rollout that are views of arrays of its slot.

    Args:
        spec: Content of the rows.
        take: Function that returns their part of an array.
        extras: Names of extras, each with its name in the slot.
        ended: Episode ends in these rows. Default: others make the ends.
    """

    def __init__(
        self, spec: RolloutSpec, take: Take, extras: Iterable[tuple[str, str]], ended: Sequence[_Ended] = ()
    ) -> None:
        self._spec, self._take, self._extras, self._ended = spec, take, extras, ended

    def make(self, name: str) -> Any:
        """Make a field. Raise ``KeyError`` if this does not know it."""
        return self._take(name, 0) if name in PLAIN else _MAKERS[name](self)

    def _observations(self, rows: Any) -> Any:
        spec, take = self._spec, self._take
        return unflatten(spec.observations, [take("observations", i)[rows] for i in _leaves(spec)])

    def _actions(self) -> Any:
        return unflatten(self._spec.actions, [self._take("actions", i) for i in range(len(self._spec.actions))])

    def _next_infos(self) -> Any:
        return {name: self._take("infos", name) for info in self._spec.infos for name in info.names}

    def _infos(self) -> Any:
        acted_on = [name for info in self._spec.infos if info.acted_on for name in info.names]
        return self._next_infos() | {name: self._take("seen", name)[: self._spec.rollout_length] for name in acted_on}


_MAKERS: dict[str, Callable[[_Fields], Any]] = {
    "observations": lambda of: of._observations(slice(of._spec.rollout_length)),
    "last_observations": lambda of: of._observations(of._spec.rollout_length),
    "shifted_observations": lambda of: of._observations(slice(1, None)),
    "actions": _Fields._actions,
    "extras": lambda of: {name: of._take("extras", stored) for name, stored in of._extras},
    "infos": _Fields._infos,
    "next_infos": _Fields._next_infos,
    "initial_carry": lambda of: _carry(of._spec, of._take),
    "ends": lambda of: [ended.ends(of._spec) for ended in of._ended],
}
_OF_AGENTS = (*PLAIN, *(name for name in _MAKERS if name not in ("initial_carry", "ends")))


def _carry(spec: RolloutSpec, take: Take, policy: str | None = None) -> Any:
    """Return the carry of the only policy, or of one of several by name; ``None`` if it has none."""
    mine = [i for i, leaf in enumerate(spec.carry) if policy is None or leaf.path[0] == policy]
    if not mine:
        return None
    tree = unflatten([spec.carry[i] for i in mine], [take("carry", i) for i in mine])
    return tree if policy is None else tree[policy]


def _places_of_ends(rows_per_column: int, arrays: Arrays, columns: Sequence[Columns]) -> Any:
    """Return the places of the ends of several workers, int64 ``[K]``. The ends of each begin at its first row."""
    counts = arrays["commits", 0]["num_ends"].tolist()
    begins = [rows_per_column * mine.first for mine in columns]
    there = [range(begin, begin + counts[mine.position]) for begin, mine in zip(begins, columns, strict=True)]
    return np.fromiter(chain.from_iterable(there), np.int64)


class _Ended(NamedTuple):
    """Episode ends in some columns.

    Args:
        records: The ends, :data:`~parenv.memory.layout.END_DTYPE` ``[K]``, with columns as places among those of the
            rollout.
        finals: Function that returns the leaves of the final observations.
    """

    records: Any
    finals: Callable[[], Sequence[Any]]

    def ends(self, spec: RolloutSpec) -> Ends:
        """Return the ends with their final observations."""
        records, observations = self.records, unflatten(spec.observations, self.finals())
        if not len(records):
            return Ends(_NOWHERE, _NOWHERE, observations, _NO, _NO, _NO, _NO)
        steps, columns = records["step"].astype(np.int64), records["column"].astype(np.int64)
        known, resets_next, void = (records[name] != 0 for name in ("known", "resets_next", "void"))
        return Ends(steps, columns, observations, known, resets_next, void, records["ended_by"] >= FIRST_LOST)


def _ended_together(spec: RolloutSpec, arrays: Arrays, columns: Sequence[Columns]) -> _Ended | None:
    """Return the ends of several workers, which takes less time than one worker at a time.

    ``None`` if some final observations are not among the arrays of the slot.
    """
    there = _places_of_ends(spec.rollout_length, arrays, columns)
    records = arrays["ends", 0][there]
    if any(mine.objects for mine in columns) or records["resets_next"].any():
        return None
    if columns[0].first:
        records["column"] -= columns[0].first
    return _Ended(records, lambda: [arrays["finals", i][there] for i in _leaves(spec)])


def _ended(spec: RolloutSpec, arrays: Arrays, mine: Columns, first: int, take: Take) -> _Ended:
    """Return the ends of a worker, in a rollout that begins with this column."""
    begin = spec.rollout_length * mine.first
    there = slice(begin, begin + int(arrays["commits", 0]["num_ends"][mine.position]))
    records = arrays["ends", 0][there]
    if first:
        records = records.copy()
        records["column"] -= first

    def finals() -> list[Any]:
        if len(records) and records["resets_next"][0]:  # All ends have this flag then: they are of one environment.
            return [_picked(take("observations", i)[1:], records["step"], records["column"]) for i in _leaves(spec)]
        return [
            mine.objects.get(("finals", i), []) if leaf.dtype is None else arrays["finals", i][there]
            for i, leaf in enumerate(spec.observations)
        ]

    return _Ended(records, finals)


def _any(flags: Any) -> bool:
    """Return whether a flag is set. For few flags this takes a tenth of the time of numpy."""
    return any(flags.tolist())


def _leaves(spec: RolloutSpec) -> range:
    return range(len(spec.observations))


def _picked(rows: Any, steps: Any, columns: Any) -> Any:
    if isinstance(rows, list):
        return [rows[step][column] for step, column in zip(steps.tolist(), columns.tolist(), strict=True)]
    return rows[steps, columns]


def episodes_of(records: Any, env_ids: Any) -> EpisodeStatistics:
    """Return the episodes among ends, without the ends of mere lives.

    Args:
        records: Ends, :data:`~parenv.memory.layout.END_DTYPE` ``[K]``.
        env_ids: Sub-environments by column, int64 ``[B]``.
    """
    if not records["counts"].all():
        records = records[records["counts"] != 0]
    return EpisodeStatistics(*_figures(records), env_ids[records["column"]], endings_of(records["ended_by"]))


def _figures(records: Any) -> tuple[Any, Any, Any]:
    """Return returns, lengths and seconds of ends, each contiguous."""
    returns, lengths, seconds = (records[name].copy() for name in ("return", "length", "seconds"))
    return returns, lengths, seconds


def _regular(rows: Any) -> Any:
    """Return rows as a slice if they are at one distance from one another, so that they are not copied."""
    if len(rows) < 2:
        return slice(int(rows[0]), int(rows[0]) + 1) if len(rows) else slice(0, 0)
    distance = int(rows[1] - rows[0])
    if (np.diff(rows) == distance).all():
        return slice(int(rows[0]), int(rows[-1]) + 1, distance)
    return rows
