"""Cut chunks of rows of all sub-environments into parts of their episodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError
from parenv.experience.episode_parts import PART_AXES, Values, copied, cut
from parenv.memory.layout import MAX_EPISODE_STEPS, ROLLOUT_FIELDS, ROW_DTYPE, Axes, RolloutSpec
from parenv.memory.spaces import flatten
from parenv.memory.trees import as_array, copy_of
from parenv.worker.actor import Actor
from parenv.worker.writing import RolloutWriter


@dataclass
class Part:
    """Consecutive rows of one sub-environment that have not been sent.

    Args:
        values: Rows. After the last row of an episode there is one more observation.
        record: End of the episode, :data:`~parenv.memory.layout.END_DTYPE` ``[1]``, or ``None`` if it has not ended.
        finals: Final observation, one array or list ``[1, ...]`` per leaf.
        is_own: Whether the rows have memory of their own.
    """

    values: Values
    record: Any = None
    finals: Sequence[Any] = ()
    is_own: bool = False

    @property
    def size(self) -> int:
        """Number of rows, with the one after the end."""
        return len(self.values["rows", 0])

    @property
    def steps(self) -> Values:
        """Rows without the observation after the end."""
        return cut(self.values, 0, self.size - (self.record is not None))

    def split(self, count: int) -> tuple[Part, Part]:
        """Return the first rows, and the others."""
        first, others = cut(self.values, 0, count), cut(self.values, count, self.size)
        return Part(first, is_own=self.is_own), Part(others, self.record, self.finals, self.is_own)

    def own(self) -> Part:
        """Return the part with memory of its own."""
        if self.is_own:
            return self
        return Part(copied(self.values), self.record, [copy_of(final) for final in self.finals], True)


class ChunkCutter:
    """Cuts chunks of rows into parts of episodes.

    Args:
        num_envs: Number of sub-environments. All are at the beginning of an episode.

    Attributes:
        is_playing: Whether the next row belongs to an episode. It does not if it only resets the sub-environment.
        is_fresh: Whether no row of the present episode has been cut, bool ``[B]``.
    """

    def __init__(self, num_envs: int) -> None:
        self.is_playing = [True] * num_envs
        self.is_fresh = np.ones(num_envs, np.bool_)
        self._lengths = [0] * num_envs

    def cut(
        self, chunk: RolloutWriter, num_rows: int, begun: Iterable[tuple[int, int]] = ()
    ) -> Iterator[tuple[int, Part]]:
        """Yield each part with its column.

        Args:
            chunk: Writer of the rows.
            num_rows: Number of rows.
            begun: ``(row, column)`` of the first row of each episode that began. Other episodes are left out.

        Raises:
            ConfigurationError: An episode is too long.
        """
        records = chunk.end_records()
        ends: list[list[int]] = [[] for _ in self.is_playing]
        for end, column in enumerate(records["column"].tolist()):
            ends[column].append(end)
        starts = [[0] if is_playing else [] for is_playing in self.is_playing]
        for row, column in begun:
            starts[column].append(row)
        for column, firsts in enumerate(starts):
            for i, first in enumerate(firsts):
                place = ends[column][i] if i < len(ends[column]) else None
                stop = num_rows if place is None else int(records["step"][place]) + 1
                if first < stop:
                    yield column, self._part(chunk, column, first, stop, place)
            self.is_playing[column] = len(firsts) > len(ends[column])
            self.is_fresh[column] = not self.is_playing[column] or firsts[-1] == num_rows

    def _part(self, chunk: RolloutWriter, column: int, first: int, stop: int, end: int | None) -> Part:
        """Return rows of a column as views. ``end`` is the place of the end after them, or ``None``."""
        begins, has_ended = first > 0 or self.is_fresh[column], end is not None
        self._lengths[column] = stop - first + (0 if begins else self._lengths[column])
        check_length(self._lengths[column])
        values: dict[tuple[str, Any], Any] = {}
        for name, block in {**chunk.own, **chunk.columns.objects}.items():
            if (axes := ROLLOUT_FIELDS[name[0]].axes) in PART_AXES:
                until = stop + (has_ended and axes is Axes.OBSERVATIONS)
                is_list = isinstance(block, list)
                values[name] = [row[column] for row in block[first:until]] if is_list else block[first:until, column]
        rows = np.zeros(stop - first + has_ended, ROW_DTYPE)
        if ("rows", 0) in values:
            rows["version"][: stop - first] = values["rows", 0]["version"]
        rows["column"], rows["begins"][0], rows["is_after"][-1] = column, begins, has_ended
        values["rows", 0] = rows
        if end is None:
            return Part(values)
        record = chunk.end_records()[end : end + 1].copy()
        finals = [block[end : end + 1] for block in chunk.finals]
        if record["resets_next"][0]:
            finals = [values["observations", i][-1:] for i in range(len(finals))]
        return Part(values, record, finals)


def initial_carry(spec: RolloutSpec, actor: Actor) -> dict[tuple[str, Any], Any]:
    """Return the arrays ``[1, ...]`` of the carry at the beginning of an episode."""
    initial = flatten(spec.carry, actor.initial_carry(1)) if spec.carry else ()
    return {("carry", i): as_array(value) for i, value in enumerate(initial)}


def check_length(num_steps: int) -> None:
    """Check the length so far of an episode.

    Raises:
        ConfigurationError: It is too long.
    """
    if num_steps > MAX_EPISODE_STEPS:
        raise ConfigurationError(
            f'episodes must end within {MAX_EPISODE_STEPS:,} env steps with rollout_length="episode". Wrap the '
            "environment in gymnasium.wrappers.TimeLimit, or pass a number of steps."
        )
