"""Versions of the policies of a pool, and the places of their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from parenv.errors import ConfigurationError, NotPicklableError, embedded
from parenv.experience.assembly import Played
from parenv.policy.assignment import UNNAMED, PolicyRow, PolicyTable
from parenv.policy.policy import Policy, PolicyFactory, as_policy
from parenv.policy.snapshots import WeightsWriter, flat_layout, module_of
from parenv.pool.divergence import has_moved
from parenv.process.user_code import dumps


class Version(NamedTuple):
    """Version of all policies together, as a credit names it.

    Args:
        number: Number of publishes before it.
        place: Place of its weights in shared memory. With named policies, the number of its table.
        snapshot: Pickled settings, and the policy if it has no module. Empty without settings for the policy that the
            pool was made with. With named policies, the pickled table.
    """

    number: int
    place: int
    snapshot: bytes


class Versions:
    """Versions that workers may still need.

    A version of all policies is a table with a row per policy: the policy's own version and its place. A single policy
    without a name is a table with one row.

    Args:
        policies: Policies by name as the user gave them, which are version 0. A single policy has the name
            :data:`~parenv.policy.assignment.UNNAMED`.
        weights: Writers of the weights, by name of each policy with a module.
        places: Number of versions of each policy that fit into shared memory.
        settings: Settings of version 0 by policy, beside those that the policy has.
        max_frozen: Maximum number of frozen versions.
        num_workers: Number of workers.

    Attributes:
        newest: Newest version.
        tables: Table of each version that is kept, by its number.
    """

    newest: Version
    _kept: dict[int, Version]
    tables: dict[int, PolicyTable]

    def __init__(
        self,
        policies: Mapping[str, Any],
        weights: Mapping[str, WeightsWriter],
        places: int,
        settings: Mapping[str, Mapping[str, Any]],
        max_frozen: int,
        num_workers: int,
    ) -> None:
        self._policies, self._weights, self._places, self._max_frozen = policies, weights, places, max_frozen
        self._is_named = UNNAMED not in policies
        self._serial = 0
        self._played: dict[int, Played] = {}
        self._in_use = dict.fromkeys(range(num_workers), (-1, frozenset[int]()))
        for name, writer in weights.items():
            writer.write(module_of(policies[name]), 0, None)
        own = {name: {**getattr(policy, "settings", {}), **settings.get(name, {})} for name, policy in policies.items()}
        mine = {name: [0, settings] for name, settings in own.items()}
        self._restore(0, {"policies": mine, "frozen": {}, "indices": len(policies)}, {})

    def __getitem__(self, number: int) -> Version:
        return self._kept[number]

    @property
    def table(self) -> PolicyTable:
        """Table of the newest version."""
        return self.tables[self.newest.number]

    @property
    def numbers(self) -> dict[str, int]:
        """Newest version of each policy."""
        return {name: row.number for name, row in self.table.items() if row.of == name}

    @property
    def setting_names(self) -> set[str]:
        """Names of the settings of any policy."""
        return {name for row in self.table.values() for name in row.settings}

    @property
    def frozen(self) -> dict[str, int]:
        """Size of each frozen version in bytes, by name."""
        return {name: _nbytes(row, self._policies[row.of]) for name, row in self.table.items() if row.of != name}

    def named(self) -> Self:
        """Return these versions, if policies have names.

        Raises:
            ConfigurationError: The pool has one policy without a name.
        """
        if self._is_named:
            return self
        raise ConfigurationError(
            "the pool must have named policies, but has one policy without a name. Pass policies by name, such as "
            'AsyncWorkerPool(env_fn, {"runner": policy}).'
        )

    def played(self, numbers: Mapping[int, int]) -> dict[int, Played]:
        """Return every policy that has existed, by its index.

        Args:
            numbers: Version that acted, by index of each policy that learns.
        """
        newest = self.numbers
        return self._played | {
            i: Played(name, name, numbers[i], newest[name] - numbers[i]) for i, name in enumerate(self._policies)
        }

    def owners(self) -> dict[int, str]:
        """Return the name of the learning policy of each policy that has existed, by index."""
        return {index: one.of for index, one in self._played.items()}

    def has_room(self, in_use: Iterable[int]) -> bool:
        """Drop versions that are neither in use nor the newest, and return whether another one fits into memory."""
        needed = {*in_use, self.newest.number}
        self._kept = {number: version for number, version in self._kept.items() if number in needed}
        self.tables = {number: table for number, table in self.tables.items() if number in needed}
        return all(len(self._taken(name)) < self._places for name in self._policies)

    def checked(self, given: Any) -> Mapping[str, Any]:
        """Check the argument of ``publish``, and return policies, modules or state dicts by name.

        Raises:
            ConfigurationError: The argument cannot be published.
        """
        if not self._is_named:
            _check_has_no_names(given)
        elif not isinstance(given, Mapping) or not given:
            raise ConfigurationError(
                f"publish must get policies by name, such as {{{next(iter(self._policies))!r}: policy}}, got {given!r}"
            )
        by_name: Mapping[str, Any] = given if self._is_named else {UNNAMED: given}
        for name, policy in by_name.items():
            self._check_name(name)
            if name not in self._weights:
                if not isinstance(policy, PolicyFactory):
                    as_policy(policy)
            elif _source_of(policy) is None:
                of = f" for policy {name!r}" if name else ""
                raise ConfigurationError(
                    f"publish must get a module{of}, a policy with a module or a state dict, got {policy!r}"
                )
        return by_name

    def add(self, given: Mapping[str, Any], settings: Mapping[str, Any], number: Callable[[], int]) -> int:
        """Write versions of some policies. If this raises, nothing has changed.

        Args:
            given: Policies, modules or state dicts by name, from :meth:`checked`.
            settings: Changes of the settings of these policies.
            number: Function that counts the version. It is called when nothing else can fail.

        Returns:
            Number of the newest version.

        Raises:
            ConfigurationError: A module differs from the module of the pool's policy.
        """
        rows: dict[str, PolicyRow] = dict(self.table)
        for name, policy in given.items():
            mine, place = {**rows[name].settings, **settings}, self._free_place(name)
            if name in self._weights:
                snapshot = dumps((mine, None)) if mine else b""
                try:
                    self._weights[name].write(_source_of(policy), place, rows[name].place)
                except ConfigurationError as error:
                    raise ConfigurationError(f"policy {name!r}: {error}" if name else str(error)) from error
            else:
                snapshot = _snapshot(mine, policy)
            following = rows[name].number + 1
            rows[name] = replace(rows[name], number=following, place=place, snapshot=snapshot, settings=mine)
        self._take(number(), rows)
        return self.newest.number

    def moved(self, given: Mapping[str, Any], settings: Mapping[str, Any], min_kl: Any, on: Any) -> dict[str, Any]:
        """Return the policies that have moved from those that acted in a rollout, or that have settings to publish."""
        if not self._is_named:
            on = {UNNAMED: on}
        elif not isinstance(on, Mapping):
            raise ConfigurationError(f"min_kl needs on=rollout with the rollout of each policy by name, got on={on!r}")
        return {n: p for n, p in given.items() if has_moved(on.get(n), p, self._policies[n], min_kl, settings)}

    def weights_of(self, version: Version) -> dict[str, Any]:
        """Return the state dicts of a version, by name of each policy with a module.

        For a single policy without a name, return its state dict, which is empty without a module.
        """
        table = self.tables[version.number]
        weights = {name: writer.state_dict(table[name].place) for name, writer in self._weights.items()}
        return weights if self._is_named else weights.get(UNNAMED, {})

    def state(self) -> dict[str, Any]:
        """Return plain data for :meth:`resume`.

        For a single policy without a name, this is its settings. Otherwise it contains the version and the settings of
        each policy, and the frozen versions.
        """
        if not self._is_named:
            return dict(self.table[UNNAMED].settings)
        return {
            "policies": {name: [row.number, dict(row.settings)] for name, row in self.table.items() if row.of == name},
            "frozen": {
                name: _as_data(row, self._weights.get(row.of)) for name, row in self.table.items() if row.of != name
            },
            "indices": self._indices,
        }

    def resume(self, number: int, state: Mapping[str, Any], policies: Mapping[str, Any]) -> None:
        """Continue as version ``number``.

        Args:
            number: Number of the newest version.
            state: Plain data of :meth:`state`.
            policies: State dicts by name of policies with a module, and policies without a module. Default for each:
                the policy that the pool was made with.

        Raises:
            ConfigurationError: The state is from a pool with other policies, or has too many frozen versions.
        """
        if state.keys() != {"policies", "frozen", "indices"}:
            state = {"policies": {UNNAMED: [number, state]}, "frozen": {}, "indices": 1}
        if list(state["policies"]) != list(self._policies):
            raise ConfigurationError(
                f"the state must come from a pool with {_in_words(self._policies)}, got one with "
                f"{_in_words(state['policies'])}"
            )
        if len(state["frozen"]) > self._max_frozen:
            raise ConfigurationError(
                f"the state must have at most max_frozen={self._max_frozen} frozen versions, got "
                f"{len(state['frozen'])}. Make the pool with a larger max_frozen."
            )
        self._restore(number, state, policies)

    def freeze(self, name: str) -> str:
        """Keep the newest version of a policy under a name of its own, which is returned.

        Raises:
            ConfigurationError: There is no such policy, or there are too many frozen versions.
        """
        self._check_name(name)
        row = self.table[name]
        frozen, rows = f"{name}@{row.number}", dict(self.table)
        if frozen in rows:
            self._released.pop(frozen, None)
            rows[frozen] = replace(rows[frozen], may_be_drawn=True)
        else:
            if (count := len(self.frozen)) >= self._max_frozen:
                may_go = _may_go(self.table)
                going = count - len(may_go)
                still = f" ({going} of them are released, but still act in unfinished episodes)" if going else ""
                raise ConfigurationError(
                    f"{name!r} cannot be frozen, because max_frozen={self._max_frozen} versions are frozen already"
                    f"{still}. Release one of {may_go}, or raise max_frozen."
                )
            rows[frozen] = replace(row, index=self._indices)
            self._indices += 1
        self._take(self.newest.number, rows)
        return frozen

    def release(self, name: str) -> None:
        """Have no new episode use this frozen version. Its memory is free when no episode uses it any more.

        Raises:
            ConfigurationError: It is not frozen.
        """
        row = self.table.get(name)
        if row is None or row.of == name or not row.may_be_drawn:
            raise ConfigurationError(f"release must get one of the frozen versions {_may_go(self.table)}, got {name!r}")
        self._take(self.newest.number, {**self.table, name: replace(row, may_be_drawn=False)})
        self._released[name] = self._serial

    def note_use(self, worker: int, serial: int, acting: Sequence[int]) -> None:
        """Drop released versions that no worker uses any more.

        Args:
            worker: Worker that has committed a rollout.
            serial: Number of the table that the worker has loaded.
            acting: Indices of the policies in its current episodes.
        """
        self._in_use[worker] = (serial, frozenset(acting))
        for name, since in list(self._released.items()):
            index = self.table[name].index
            if all(loaded >= since and index not in acting for loaded, acting in self._in_use.values()):
                del self._released[name]
                self._take(self.newest.number, {n: row for n, row in self.table.items() if n != name})

    def _restore(self, number: int, state: Mapping[str, Any], policies: Mapping[str, Any]) -> None:
        rows: dict[str, PolicyRow] = {}
        for index, name in enumerate(self._policies):
            version, mine = state["policies"][name]
            policy = policies.get(name)
            if policy is not None and name in self._weights:
                self._weights[name].write(policy, 0, 0)
                policy = None
            snapshot = _snapshot(dict(mine), policy) if mine or policy is not None else b""
            rows[name] = PolicyRow(index, name, version, 0, snapshot, dict(mine))
        self._kept, self.tables = {}, {}
        self._take(number, dict(rows))
        for name, kept in state["frozen"].items():
            rows[name] = self._frozen_again(*kept)
            self._take(number, dict(rows))
        self._indices = state["indices"]
        self._released = {name: self._serial for name, row in rows.items() if not row.may_be_drawn}

    def _take(self, number: int, rows: PolicyTable) -> None:
        """Make these rows the newest version."""
        self._serial += 1
        if self._is_named:
            self.newest = Version(number, self._serial, dumps(dict(rows)))
        else:
            self.newest = Version(number, rows[UNNAMED].place, rows[UNNAMED].snapshot)
        self._kept[number], self.tables[number] = self.newest, rows
        self._played |= {row.index: Played(name, row.of, row.number, 0) for name, row in rows.items()}

    def _taken(self, name: str) -> set[int]:
        return {row.place for table in self.tables.values() for row in table.values() if row.of == name}

    def _free_place(self, name: str) -> int:
        taken = self._taken(name)
        return next(place for place in range(self._places) if place not in taken)

    def _frozen_again(
        self, index: int, of: str, number: int, snapshot: bytes, settings: Any, may_be_drawn: bool, block: Any
    ) -> PolicyRow:
        place = self._free_place(of)
        if block is not None:
            # The snapshot of a policy with a module is made again, so that no pickle of a file reaches a worker.
            snapshot = dumps((settings, None)) if settings else b""
            self._weights[of].block(place)[:] = np.asarray(block, np.uint8).tobytes()
        return PolicyRow(index, of, number, place, snapshot, settings, may_be_drawn)

    def _check_name(self, name: Any) -> None:
        if isinstance(name, str) and "@" in name:
            raise ConfigurationError(
                f"{name!r} is a frozen version, which cannot change. Name one of {list(self._policies)}."
            )
        if name not in self._policies:
            raise ConfigurationError(f"the name of a policy must be one of {list(self._policies)}, got {name!r}")


def _snapshot(settings: Mapping[str, Any], policy: Any) -> bytes:
    try:
        return dumps((settings, policy))
    except Exception as error:
        raise NotPicklableError(
            f"the published policy cannot be pickled: {embedded(error)}. Publish PolicyFactory(make), whose function "
            "makes it on each worker."
        ) from error


def _may_go(table: PolicyTable) -> list[str]:
    """Return the names of the frozen versions that have not been released."""
    return [name for name, row in table.items() if row.of != name and row.may_be_drawn]


def _as_data(row: PolicyRow, weights: WeightsWriter | None) -> list[Any]:
    """Return a frozen version as plain data."""
    block = None if weights is None else np.array(weights.block(row.place))
    snapshot = row.snapshot if weights is None else b""
    return [row.index, row.of, row.number, snapshot, dict(row.settings), row.may_be_drawn, block]


def _nbytes(row: PolicyRow, policy: Any) -> int:
    module = module_of(policy)
    return len(row.snapshot) + (0 if module is None else flat_layout(module)[1])


def _in_words(policies: Iterable[str]) -> str:
    names = list(policies)
    return "one policy without a name" if names == [UNNAMED] else f"the policies {names}"


def _source_of(given: Any) -> Any:
    """Return the module or the state dict that weights are read from, or ``None``."""
    return given if isinstance(given, Mapping) else module_of(given)


def _check_has_no_names(given: Any) -> None:
    """Refuse named policies. A state dict is a mapping too, but its values are tensors, which cannot be called."""
    if isinstance(given, Mapping) and any(isinstance(one, Policy) or callable(one) for one in given.values()):
        raise ConfigurationError(
            "publish must get the policy itself, because the pool has one policy without a name, got policies by name: "
            f"{list(given)}. Publish one of the values."
        )
