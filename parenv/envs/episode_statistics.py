"""Returns, lengths and times of episodes, as recorder wrappers report them or as the rewards give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parenv.memory.trees import ALL, as_array

if TYPE_CHECKING:
    from parenv.envs.targets import End

RECORDERS = ("RecordEpisodeStatistics", "Monitor")
"""Classes that put ``info["episode"]`` into the last step of each episode: Gymnasium's and Stable-Baselines3's."""


class Recorded(NamedTuple):
    """Return and length of an episode that has ended."""

    episode_return: float
    length: int


class EpisodeTally:
    """Returns, lengths and times of the current episodes of some rows, and which of their ends count.

    If a recorder is among the wrappers, an end that it does not report is the end of a life, and does not count.

    Args:
        num_rows: Number of rows, each of a sub-environment or of an agent.
        recorded: Whether a recorder is among the wrappers of all rows, or of each.

    Attributes:
        returns: Returns so far, float64 ``[num_rows]``.
    """

    def __init__(self, num_rows: int, recorded: bool | Sequence[bool] = False) -> None:
        self.returns, self._lengths, self._steps = np.zeros(num_rows), np.zeros(num_rows, np.int64), 0
        self._began, self._recorded = np.zeros(num_rows), np.full(num_rows, recorded)

    @property
    def lengths(self) -> Any:
        """Lengths so far, int64 ``[num_rows]``. They are -1 before a step that only resets."""
        if self._steps:
            self._lengths += self._steps
            self._steps = 0
        return self._lengths

    def begin(self, rows: Any = ALL) -> None:
        """Begin an episode in these rows."""
        self.forget(rows)
        self.start(rows)

    def start(self, rows: Any) -> None:
        """Begin to measure the time of an episode in these rows."""
        self._began[rows] = perf_counter()

    def forget(self, rows: Any, length: int = 0) -> None:
        """Begin to count the return of an episode in these rows at 0, and its length at ``length``."""
        self.returns[rows], self.lengths[rows] = 0.0, length

    def add(self, rewards: Any) -> None:
        """Add a step of every row."""
        self.returns += rewards
        self._steps += 1  # For fast vector envs, a second addition to an array would be several percent of a step.

    def add_rollout(self, rewards: Any, ends: Sequence[End]) -> tuple[Any, Any]:
        """Add the steps of a rollout, with all ends in it.

        The record of a wrapper has priority over the sum of rewards, since another wrapper may have changed these.

        Args:
            rewards: Rewards, ``[T, B]``.
            ends: Ends in the rollout.

        Returns:
            Return and length of each episode that ended, float64 ``[K]`` and int64 ``[K]``.
        """
        T, B = rewards.shape
        if not ends:  # As in most rollouts of long episodes.
            self.returns += _sums(rewards, np.arange(B) * T)
            self._steps += T
            return np.empty(0), np.empty(0, np.int64)
        # Segments are the rows between two ends of a column, and places count rows column by column.
        steps, columns = (np.array([end[i] for end in ends], np.int64) for i in (0, 1))
        last = columns * T + steps
        begins = np.sort(np.concatenate([np.arange(B) * T, last[steps < T - 1] + 1]))
        is_first, before = begins % T == 0, np.zeros(len(begins))
        before[is_first] = self.returns
        sums, counts = _sums(rewards, begins) + before, np.diff(begins, append=B * T)
        counts[is_first] += self.lengths
        ended = np.searchsorted(begins, last, "right") - 1
        returns, lengths = sums[ended], counts[ended]
        for i, end in enumerate(ends):
            if end.recorded is not None:
                returns[i], lengths[i] = end.recorded
        is_open = np.ones(len(begins), bool)
        is_open[ended] = False
        self.forget(ALL)
        self.returns[begins[is_open] // T], self.lengths[begins[is_open] // T] = sums[is_open], counts[is_open]
        return returns, lengths

    def end(self, row: int, recorded: Recorded | None) -> tuple[float, bool]:
        """End an episode, whose return and length are counted by other methods.

        Args:
            row: Row of the episode.
            recorded: Return and length from a recorder, or ``None``.

        Returns:
            Seconds since the begin, and whether the end counts.
        """
        now = perf_counter()
        seconds = now - self._began[row]
        if recorded is not None:
            self._recorded[row] = True
        elif self._recorded[row]:
            return seconds, False
        self._began[row] = now
        return seconds, True

    def end_some(self, rows: Any, infos: Any, records: Any, later: int) -> None:
        """End episodes of a ``VectorEnv``. An end whose record is ``void`` counts if the episode had a step before.

        Args:
            rows: Rows of the episodes, int64 ``[K]``.
            infos: Infos of the step.
            records: Records for the statistics, :data:`~parenv.memory.layout.END_DTYPE` ``[K]``.
            later: Number of steps until the next episodes begin.
        """
        now, lost = perf_counter(), records["void"]
        records["seconds"] = now - self._began[rows]
        records["return"] = self.returns[rows]
        records["length"] = self.lengths[rows] - lost
        records["counts"] = (lost == 0) | (records["length"] > 0)
        counted = rows
        if "episode" in infos or "final_info" in infos or self._recorded.any():
            is_said, returns, lengths = recorded_in_columns(infos, rows)
            self._recorded[rows] |= is_said
            counts = is_said | ~self._recorded[rows] | (lost != 0)
            records["counts"] &= counts
            records["return"][is_said], records["length"][is_said] = returns[is_said], lengths[is_said]
            counted = rows[counts]
        self.forget(rows, -later)
        self._began[counted] = now

    def write(self, records: Any) -> None:
        """Write the episodes in progress, :data:`~parenv.memory.layout.OPEN_DTYPE` ``[num_rows]``."""
        records["return"], records["seconds"] = self.returns, self.seconds()
        records["length"] = np.maximum(self.lengths, 0)

    def seconds(self) -> Any:
        """Return the seconds since the begin of each episode, float64 ``[num_rows]``."""
        return perf_counter() - self._began


def _sums(rewards: Any, begins: Any) -> Any:
    """Sum rewards ``[T, B]``, taken column by column, from each place to the next."""
    with np.errstate(all="ignore"):
        return np.add.reduceat(rewards.T.ravel().astype(np.float64), begins)


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
