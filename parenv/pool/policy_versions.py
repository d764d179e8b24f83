"""The versions of several policies, each with its own numbers, and the ones that are frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError
from parenv.experience.agents_assembly import Played
from parenv.policy.assignment import PolicyRow, PolicyTable
from parenv.policy.policy import as_policy
from parenv.policy.snapshots import WeightsWriter, flat_layout, module_of
from parenv.pool.moving import has_moved
from parenv.pool.versions import Version, source_of
from parenv.process.user_code import dumps


class PolicyVersions:
    """Versions that workers may still need, of policies by name.

    A version of all of them together, which a credit names, is a table that says which version of each it is. Its
    ``place`` counts the tables.

    Args:
        policies: what the user gave, each of them version 0.
        weights: by policy, what writes its weights, where it has a module.
        places: how many versions' weights there is room for, of each policy.
        settings: of version 0, by policy, beside those that it has.
        max_frozen: how many versions may be frozen at once.
        num_workers: how many workers.

    Attributes:
        tables: by number of a version of all together, what it consists of.
        setting_names: of the settings of any policy.
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
        self._policies, self._weights, self._places = policies, weights, places
        self._max_frozen, self._num_workers = max_frozen, num_workers
        self._serial, self._indices = 0, len(policies)
        self._played: dict[int, Played] = {}
        self._heard = dict.fromkeys(range(num_workers), (-1, frozenset[int]()))
        own = {name: {**getattr(policy, "settings", {}), **settings.get(name, {})} for name, policy in policies.items()}
        for name, writer in weights.items():
            writer.write(module_of(policies[name]), 0, None)
        mine = {name: [0, settings] for name, settings in own.items()}
        self.resume(0, {"policies": mine, "frozen": {}, "indices": len(policies)})

    def __getitem__(self, number: int) -> Version:
        return self._kept[number]

    @property
    def settings(self) -> dict[str, Any]:
        """What :meth:`resume` needs: of each policy its newest version and its settings, and the frozen ones."""
        return {
            "policies": {name: [row.number, dict(row.settings)] for name, row in self.table.items() if row.of == name},
            "frozen": {name: self._kept_of(row) for name, row in self.table.items() if row.of != name},
            "indices": self._indices,
        }

    @property
    def table(self) -> PolicyTable:
        """The newest."""
        return self.tables[self.newest.number]

    @property
    def numbers(self) -> dict[str, int]:
        """By policy, its newest version."""
        return {name: row.number for name, row in self.table.items() if row.of == name}

    @property
    def frozen(self) -> dict[str, int]:
        """By name of a frozen version, the bytes that are kept for it."""
        return {name: _nbytes(row, self._policies[row.of]) for name, row in self.table.items() if row.of != name}

    def played(self, numbers: Mapping[int, int]) -> dict[int, Played]:
        """By index, every policy there has been.

        Args:
            numbers: of those that learn, the version that acted.
        """
        newest = self.numbers
        return self._played | {
            i: Played(name, name, numbers[i], newest[name] - numbers[i]) for i, name in enumerate(self._policies)
        }

    def has_room(self, in_use: Iterable[int]) -> bool:
        """Whether another version of each policy can be written, if of the old ones only these are still needed."""
        needed = {*in_use, self.newest.number}
        self._kept = {number: version for number, version in self._kept.items() if number in needed}
        self.tables = {number: table for number, table in self.tables.items() if number in needed}
        return all(len(self._taken(name)) < self._places for name in self._policies)

    def add(self, given: Any, settings: Mapping[str, Any], number: Callable[[], int]) -> int:
        """Write versions of some policies; the number of what is now the newest of all together.

        Args:
            given: by name, policies, modules or state dicts.
            settings: what changes in the settings of these policies.
            number: counts it, once it is known to be right.

        Raises:
            ConfigurationError: they are not versions of policies that the pool was made with.
        """
        self._check_given(given)
        rows: dict[str, PolicyRow] = dict(self.table)
        for name, policy in given.items():
            mine, place = {**rows[name].settings, **settings}, self._free_place(name)
            if name in self._weights:
                snapshot = dumps((mine, None)) if mine else b""
                try:
                    self._weights[name].write(source_of(policy), place, rows[name].place)
                except ConfigurationError as error:
                    raise ConfigurationError(f"policy {name!r}: {error}") from error
            else:
                snapshot = dumps((mine, policy))
            number_of_it = rows[name].number + 1
            rows[name] = replace(rows[name], number=number_of_it, place=place, snapshot=snapshot, settings=mine)
        self._take(number(), rows)
        return self.newest.number

    def moved(self, given: Any, settings: Mapping[str, Any], min_kl: Any, on: Any) -> dict[str, Any] | None:
        """What of this is to be published, having moved from what acted in a rollout or with settings, or ``None``."""
        self._check_given(given)
        if not isinstance(on, Mapping):
            raise ConfigurationError(f"min_kl needs on=rollout, with what each policy did, got on={on!r}")
        mine = self._policies
        return {n: p for n, p in given.items() if has_moved(on.get(n), p, mine[n], min_kl, settings)} or None

    def weights_of(self, version: Version) -> dict[str, Any]:
        """By policy with a module, the state dict of its version in a version of all that is kept."""
        table = self.tables[version.number]
        return {name: writer.state_dict(table[name].place) for name, writer in self._weights.items()}

    def named(self) -> PolicyVersions:
        """These."""
        return self

    def resume(self, number: int, settings: Mapping[str, Any]) -> None:
        """Go on counting, from what the pool was made with, with what :attr:`settings` were."""
        if list(settings["policies"]) != list(self._policies):
            raise ConfigurationError(
                f"the state is of a pool with the policies {list(settings['policies'])}, but this one has "
                f"{list(self._policies)}"
            )
        if len(settings["frozen"]) > self._max_frozen:
            raise ConfigurationError(
                f"the state has {len(settings['frozen'])} frozen versions: make the pool with max_frozen= at least that"
            )
        rows: dict[str, PolicyRow] = {}
        for index, name in enumerate(self._policies):
            version, mine = settings["policies"][name]
            snapshot = dumps((dict(mine), None)) if mine else b""
            rows[name] = PolicyRow(index, name, version, 0, snapshot, dict(mine))
        self._kept, self.tables = {}, {}
        self._take(number, dict(rows))
        for name, kept in settings["frozen"].items():
            rows[name] = self._frozen_again(*kept)
            self._take(number, dict(rows))
        self._indices = settings["indices"]
        self._released = {name: self._serial for name, row in rows.items() if not row.may_be_drawn}

    def freeze(self, name: str) -> str:
        """Keep the newest version of a policy as another one, by the name that is returned.

        Raises:
            ConfigurationError: there is no such policy, or there are too many frozen ones.
        """
        self._check_name(name)
        row = self.table[name]
        frozen, rows = f"{name}@{row.number}", dict(self.table)
        if frozen in rows:
            self._released.pop(frozen, None)
            rows[frozen] = replace(rows[frozen], may_be_drawn=True)
        else:
            if len(self.frozen) >= self._max_frozen:
                raise ConfigurationError(self._too_many(name))
            rows[frozen] = replace(row, index=self._indices)
            self._indices += 1
        self._take(self.newest.number, rows)
        return frozen

    def release(self, name: str) -> None:
        """No episode that begins from now on has this frozen version; when none has it any more, its memory is free.

        Raises:
            ConfigurationError: it is not frozen.
        """
        row = self.table.get(name)
        if row is None or row.of == name or not row.may_be_drawn:
            raise ConfigurationError(f"there is no frozen version {name!r} to release: there are {self._may_go()}")
        self._take(self.newest.number, {**self.table, name: replace(row, may_be_drawn=False)})
        self._released[name] = self._serial

    def heard(self, worker: int, serial: int, acting: Sequence[int]) -> None:
        """A worker has committed a rollout by a table, with episodes under way by these policies."""
        self._heard[worker] = (serial, frozenset(acting))
        for name, since in list(self._released.items()):
            index = self.table[name].index
            if all(heard >= since and index not in acting for heard, acting in self._heard.values()):
                del self._released[name]
                self._take(self.newest.number, {n: row for n, row in self.table.items() if n != name})

    def _take(self, number: int, rows: PolicyTable) -> None:
        """Have these be the newest of all."""
        self._serial += 1
        self.newest = Version(number, self._serial, dumps(dict(rows)))
        self._kept[number], self.tables[number] = self.newest, rows
        self.setting_names = {name for row in rows.values() for name in row.settings}
        self._played |= {row.index: Played(name, row.of, row.number, 0) for name, row in rows.items()}

    def _taken(self, name: str) -> set[int]:
        return {row.place for table in self.tables.values() for row in table.values() if row.of == name}

    def _free_place(self, name: str) -> int:
        taken = self._taken(name)
        return next(place for place in range(self._places) if place not in taken)

    def _kept_of(self, row: PolicyRow) -> list[Any]:
        """A frozen version as plain data."""
        block = np.array(self._weights[row.of].block(row.place)) if row.of in self._weights else None
        return [row.index, row.of, row.number, row.snapshot, dict(row.settings), row.may_be_drawn, block]

    def _frozen_again(
        self, index: int, of: str, number: int, snapshot: bytes, settings: Any, may_be_drawn: bool, block: Any
    ) -> PolicyRow:
        place = self._free_place(of)
        if block is not None:
            self._weights[of].block(place)[:] = np.asarray(block, np.uint8).tobytes()
        return PolicyRow(index, of, number, place, snapshot, settings, may_be_drawn)

    def _check_given(self, given: Any) -> None:
        if not isinstance(given, Mapping) or not given:
            raise ConfigurationError(
                f"publish needs policies by name, such as {{{next(iter(self._policies))!r}: policy}}, got {given!r}"
            )
        for name, policy in given.items():
            self._check_name(name)
            if name not in self._weights:
                as_policy(policy)
            else:
                source_of(policy, f" of policy {name!r}")

    def _check_name(self, name: Any) -> None:
        if isinstance(name, str) and "@" in name:
            raise ConfigurationError(f"{name!r} is a frozen version, which does not change any more")
        if name not in self._policies:
            raise ConfigurationError(f"there is no policy {name!r}: the pool was made with {list(self._policies)}")

    def _may_go(self) -> list[str]:
        """The frozen versions that have not been released."""
        return [name for name, row in self.table.items() if row.of != name and row.may_be_drawn]

    def _too_many(self, name: str) -> str:
        may_go = self._may_go()
        going = len(self.frozen) - len(may_go)
        still = f", and {going} that are released still act in episodes under way" if going else ""
        return (
            f"{name!r} cannot be frozen: max_frozen={self._max_frozen} versions are frozen already{still}. Release one "
            f"of {may_go}, or raise max_frozen"
        )


def _nbytes(row: PolicyRow, policy: Any) -> int:
    module = module_of(policy)
    return len(row.snapshot) + (0 if module is None else flat_layout(module)[1])
