"""Returns, lengths and times of episodes, as recorder wrappers report them or as the rewards give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from parenv.memory.trees import as_array

RECORDERS = ("RecordEpisodeStatistics", "Monitor")
"""Classes that put ``info["episode"]`` into the last step of each episode: Gymnasium's and Stable-Baselines3's."""


class Recorded(NamedTuple):
    """Return and length of an episode that has ended."""

    episode_return: float
    length: int


class EpisodeClocks:
    """Times of the current episodes of single environments, and which ends count as ends of episodes.

    Args:
        recorded: Whether a recorder is among the wrappers of each sub-environment.
    """

    def __init__(self, recorded: Sequence[bool]) -> None:
        self._began = [0.0] * len(recorded)
        self._recorded = list(recorded)

    def seconds(self) -> Any:
        """Return the seconds since the begin of each episode, float64 ``[B]``."""
        return np.subtract(perf_counter(), self._began)

    def begin(self, column: int) -> None:
        """Begin an episode."""
        self._began[column] = perf_counter()

    def end(self, column: int, recorded: Recorded | None) -> tuple[float, bool]:
        """End an episode.

        Args:
            column: Column of the sub-environment.
            recorded: Return and length from a recorder, or ``None``.

        Returns:
            Seconds since the begin, and whether the end counts. An end that a recorder does not report is the end of a
            life, and does not count.
        """
        now = perf_counter()
        seconds = now - self._began[column]
        if recorded is not None:
            self._recorded[column] = True
        elif self._recorded[column]:
            return seconds, False
        self._began[column] = now
        return seconds, True


class EpisodeSums:
    """Returns, lengths and times of the current episodes of a ``VectorEnv``.

    Args:
        batch: Number of sub-environments.
        is_recorded: Whether a recorder is among the wrappers.
    """

    def __init__(self, batch: int, is_recorded: bool) -> None:
        self._returns, self._began = np.zeros(batch), np.zeros(batch)
        self._steps, self._steps_before = 0, np.zeros(batch, np.int64)
        self._recorded, self._any_recorded = np.full(batch, is_recorded), is_recorded

    def begin(self) -> None:
        """Begin an episode in every sub-environment."""
        self._returns[:], self._steps_before[:] = 0.0, self._steps
        self._began[:] = perf_counter()

    def add(self, rewards: Any) -> None:
        """Add a step of every sub-environment."""
        self._returns += rewards
        self._steps += 1

    def write_open(self, records: Any) -> None:
        """Write the episodes in progress, :data:`~parenv.memory.layout.OPEN_DTYPE` ``[B]``."""
        records["return"], records["seconds"] = self._returns, perf_counter() - self._began
        # The number is negative before the step that only resets.
        records["length"] = np.maximum(self._steps - self._steps_before, 0)

    def end(self, columns: Any, infos: Any, records: Any, later: int) -> None:
        """End episodes. An end that a recorder does not report is the end of a life, and does not count.

        An end whose record is ``void`` lost the episode, which counts if it had a step before.

        Args:
            columns: Columns of the sub-environments, int64 ``[K]``.
            infos: Infos of the step.
            records: Records for the statistics, :data:`~parenv.memory.layout.END_DTYPE` ``[K]``.
            later: Number of steps until the next episodes begin.
        """
        now, lost = perf_counter(), records["void"]
        records["seconds"] = now - self._began[columns]
        records["return"] = self._returns[columns]
        records["length"] = self._steps - self._steps_before[columns] - lost
        records["counts"] = (lost == 0) | (records["length"] > 0)
        counted = columns
        if self._any_recorded or "episode" in infos or "final_info" in infos:
            is_said, returns, lengths = recorded_in_columns(infos, columns)
            self._recorded[columns] |= is_said
            self._any_recorded = bool(self._recorded.any())
            counts = is_said | ~self._recorded[columns] | (lost != 0)
            records["counts"] &= counts
            records["return"][is_said], records["length"][is_said] = returns[is_said], lengths[is_said]
            counted = columns[counts]
        self._returns[columns], self._steps_before[columns] = 0.0, self._steps + later
        self._began[counted] = now


def is_recorded(env: Any) -> bool:
    """Tell whether a recorder is among the wrappers of an environment, single or vector."""
    return any(kind.__name__ in RECORDERS for layer in _layers(env) for kind in type(layer).__mro__)


def recorded_in(info: Mapping[str, Any]) -> Recorded | None:
    """Read return and length of an episode from the info of its last step; ``None`` if they are not there."""
    said = info.get("episode")
    if said is None:  # This holds at nearly every end. The check below asks an abstract class, which takes longer.
        return None
    if not isinstance(said, Mapping) or "r" not in said or "l" not in said:
        return None
    return Recorded(_number(said["r"]), int(_number(said["l"])))


def recorded_in_columns(infos: Mapping[str, Any], columns: Any) -> tuple[Any, Any, Any]:
    """Read returns and lengths of episodes from the infos of a ``VectorEnv``, or from its ``final_info``.

    Args:
        infos: Infos of all sub-environments.
        columns: Columns to read, int64 ``[K]``.

    Returns:
        Whether the infos contain them, bool ``[K]``; returns, float64 ``[K]``; lengths, int64 ``[K]``.
    """
    is_said = np.zeros(len(columns), bool)
    returns, lengths = np.zeros(len(columns)), np.zeros(len(columns), np.int64)
    for part in (infos, infos.get("final_info")):
        said, there = (part.get("episode"), part.get("_episode")) if isinstance(part, Mapping) else (None, None)
        if isinstance(said, Mapping) and "r" in said and "l" in said:
            mine = ~is_said if there is None else ~is_said & as_array(there)[columns].astype(bool)
            for values, name in ((returns, "r"), (lengths, "l")):
                values[mine] = as_array(said[name])[columns[mine]]
            is_said |= mine
    return is_said, returns, lengths


def _layers(env: Any) -> Iterator[Any]:
    while env is not None:
        yield env
        for part in _own(env, "envs") or ():
            yield from _layers(part)
        env = _own(env, "env")


def _own(env: Any, name: str) -> Any:
    """Read an attribute of an object, without the forwarding of wrappers; ``None`` without such an attribute.

    This function does not read ``__dict__``. An object whose ``__dict__`` was read once has slower attributes from then
    on, which costs several percent of a step of CartPole.
    """
    try:
        return object.__getattribute__(env, name)
    except AttributeError:
        return None


def _number(value: Any) -> float:
    return float(np.asarray(value).item())
