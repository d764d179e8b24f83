"""Whole episodes, joined from the rollouts in which their steps arrive."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import numpy as np

from parenv.experience.episode_parts import OpenEpisodes, joined
from parenv.experience.rollout import Ends, Rollout
from parenv.experience.summary import Summarized, shapes_of
from parenv.memory.trees import Tree, array_or_list, concatenated, leaves_in, map_trees

_STEPS = "observations", "actions", "rewards", "next_infos"
"""Fields of a rollout whose rows an episode consists of."""
_BYTES_OF_OBJECT = 64
"""Assumed size of a value that is not an array."""


@dataclass(frozen=True, repr=False)
class Episode(Summarized):
    """Whole episode of a sub-environment, from its reset to its end.

    Args:
        env_id: Sub-environment.
        observations: Observations, ``[length + 1, *obs]``, nested as the space is. The last one is the final one.
        actions: Actions, ``[length, *action]``, nested as the space is.
        rewards: Rewards, float32 ``[length]``.
        infos: Infos that the user named, each ``[length + 1, ...]``. ``infos[name][t]`` came with ``observations[t]``.
            The mask ``infos["_name"]``, bool ``[length + 1]``, is true if the info was present. The infos of the reset
            are known only for infos that the policy takes.
        ended_by: ``"terminated"`` or ``"truncated"``.
        seed: Seed of the reset; ``None`` if the pool has no ``episode_seeds``.
        policy_version: Version that acted first.
        final_known: Whether the environment returned the final observation. If not, it is NaN, or 0 in integers.

    >>> episode = Episode(3, np.zeros((3, 4)), np.zeros(2, np.int64), np.ones(2, np.float32), {}, "terminated", seed=7)
    >>> episode.length, episode.total_return
    (2, 2.0)
    """

    env_id: int
    observations: Tree
    actions: Tree
    rewards: Any
    infos: Mapping[str, Any]
    ended_by: str
    seed: int | None = None
    policy_version: int = 0
    final_known: bool = True

    @property
    def length(self) -> int:
        """Number of env steps."""
        return len(self.rewards)

    @property
    def total_return(self) -> float:
        """Undiscounted sum of the rewards."""
        return float(np.sum(self.rewards, dtype=np.float64))

    @cached_property
    def nbytes(self) -> int:
        """Size of the episode in memory, in bytes."""
        return _size_of([self.observations, self.actions, self.rewards, dict(self.infos)])

    def _facts(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("env_id", "length", "total_return", "ended_by", "seed")}
        return facts | {"observations": shapes_of(self.observations), "actions": shapes_of(self.actions)}


class EpisodeCutter:
    """Cuts rollouts into whole episodes, each of them once.

    The rows of a sub-environment must come in their order. An episode is left out if its beginning was not seen, if it
    was lost or cut, or if it takes more memory than allowed.

    Args:
        infos_taken: Names of the infos that the policy takes.
        seed_info: Name of the info with the seed of the episode.
        max_bytes: Limit for an episode in progress, in bytes.
        is_new: Whether the first rollout of each sub-environment begins with a reset.
    """

    def __init__(self, infos_taken: Collection[str], seed_info: str, max_bytes: int, is_new: bool) -> None:
        self._taken, self._seed_info, self._is_new = infos_taken, seed_info, is_new
        self._open, self._seen = OpenEpisodes(max_bytes), set[int]()

    @property
    def too_large(self) -> int:
        """Number of episodes that were left out because of ``max_bytes``."""
        return self._open.too_large

    def forget(self) -> None:
        """Leave out all episodes in progress. The next rollouts may begin within episodes."""
        self._open.clear()
        self._seen.clear()
        self._is_new = False

    def cut(self, rollout: Rollout) -> list[Episode]:
        """Return the episodes that end in a rollout, in the order of their last steps."""
        rows = _Rows(rollout)
        restarted = array_or_list(rollout.restarted).tolist()
        found: list[tuple[int, Episode]] = []
        for column, env_id in enumerate(rows.env_ids):
            if restarted[column] if env_id in self._seen else self._is_new:
                self._open.begin(env_id)
            self._seen.add(env_id)
            found += self._cut_column(rows, column, env_id)
        return [episode for _, episode in sorted(found, key=itemgetter(0))]

    def _cut_column(self, rows: _Rows, column: int, env_id: int) -> list[tuple[int, Episode]]:
        """Return the episodes that end in a column, each with its last row."""
        found, begin = [], 0
        for step, place in rows.ends[column]:
            self._add(rows, env_id, column, begin, step + 1)
            parts, begin = self._open.end(env_id), step + 1
            if parts and not rows.lost[place]:
                found.append((step, self._joined(rows, parts, env_id, step, column, place)))
            self._open.begin(env_id)
        self._add(rows, env_id, column, begin, rows.length)
        return found

    def _add(self, rows: _Rows, env_id: int, column: int, begin: int, stop: int) -> None:
        """Copy some rows to the episode in progress, unless it is left out."""
        if env_id in self._open and len(chosen := rows.chosen(column, begin, stop)):
            part = rows.part(column, chosen)
            about = rows.policy_version, rows.first_infos(column, chosen[:1], self._taken)
            self._open.add(env_id, (about, part), _size_of(part))

    def _joined(self, rows: _Rows, opened: list[Any], env_id: int, step: int, column: int, place: int) -> Episode:
        ((policy_version, first_infos), first), *_ = opened
        parts = [part for _, part in opened]
        final = map_trees(lambda value: value[place : place + 1], rows.finals)
        return Episode(
            env_id,
            joined([*(part["observations"] for part in parts), final]),
            joined([part["actions"] for part in parts]),
            joined([part["rewards"] for part in parts]),
            {
                name: concatenated(value, *(part["next_infos"][name] for part in parts))
                for name, value in first_infos.items()
                if name.removeprefix("_") != self._seed_info
            },
            "terminated" if rows.terminated[step, column] else "truncated",
            seed=self._seed(first["next_infos"]),
            policy_version=policy_version,
            final_known=bool(rows.known[place]),
        )

    def _seed(self, infos: Mapping[str, Any]) -> int | None:
        """Return the seed from the infos of the first steps."""
        there = self._seed_info in infos and bool(infos[f"_{self._seed_info}"][0])
        return int(infos[self._seed_info][0]) if there else None


class _Rows:
    """Rollout with numpy arrays, and its ends by column as ``(row, place among all ends)``."""

    def __init__(self, rollout: Rollout) -> None:
        ends = Ends.joined(rollout.ends)
        steps, columns = array_or_list(ends.steps).tolist(), array_or_list(ends.columns).tolist()
        self.env_ids: list[int] = array_or_list(rollout.env_ids).tolist()
        self.ends: list[list[tuple[int, int]]] = [[] for _ in self.env_ids]
        for place in sorted(range(len(steps)), key=steps.__getitem__):
            self.ends[columns[place]].append((steps[place], place))
        self.length: int = len(rollout.rewards)
        self.policy_version = rollout.policy_version
        self.terminated, self._valid = array_or_list(rollout.terminated), array_or_list(rollout.valid)
        self._all_valid = bool(self._valid.all())
        self.finals = map_trees(array_or_list, ends.observations)
        self.known = np.ones(len(steps), bool) if ends.known is None else array_or_list(ends.known)
        self.lost = np.zeros(len(steps), bool) if ends.lost is None else array_or_list(ends.lost)
        self._infos = map_trees(array_or_list, rollout.infos)
        self._steps = {name: map_trees(array_or_list, getattr(rollout, name)) for name in _STEPS}

    def chosen(self, column: int, begin: int, stop: int) -> Sequence[int]:
        """Return the transitions among some rows of a column."""
        rows = range(begin, stop)
        return rows if self._all_valid else [row for row in rows if self._valid[row, column]]

    def part(self, column: int, chosen: Sequence[int]) -> Any:
        """Return copies of some rows of a column."""
        return map_trees(partial(_taken, column, chosen), self._steps)

    def first_infos(self, column: int, first: Sequence[int], known: Collection[str]) -> dict[str, Any]:
        """Return the infos of the observation in a row. Infos with other names are unknown there, and 0."""
        found = {name: _taken(column, first, value) for name, value in self._infos.items()}
        return {
            name: value if name in known or name.removeprefix("_") in known else np.zeros_like(value)
            for name, value in found.items()
        }


def _taken(column: int, chosen: Sequence[int], value: Any) -> Any:
    """Return a copy of some rows of a column of an array or a list."""
    if isinstance(value, list):
        return [value[row][column] for row in chosen]
    rows = slice(chosen.start, chosen.stop) if isinstance(chosen, range) else chosen
    return value[rows, column].copy()


def _size_of(tree: Tree) -> int:
    return sum(_size(value) for _, value in leaves_in(tuple(tree) if isinstance(tree, list) else tree))


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(getattr(item, "nbytes", 0) + _BYTES_OF_OBJECT for item in value)
    return int(getattr(value, "nbytes", 0))
