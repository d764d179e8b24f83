"""What ``RecordEpisodeStatistics``, or a wrapper like it, says of an episode: it has seen the rewards as they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from parenv.memory.trees import as_array

RECORDERS = ("RecordEpisodeStatistics", "Monitor")
"""Classes that put ``info["episode"]`` into the last step of each episode, Gymnasium's and Stable-Baselines3's."""


class Recorded(NamedTuple):
    """Return and length of an episode that has ended."""

    episode_return: float
    length: int


class EpisodeClocks:
    """For how long the episodes of some sub-environments have been under way, and which of them are episodes at all.

    Args:
        recorded: of each, whether a recorder is among its wrappers.
    """

    def __init__(self, recorded: Sequence[bool]) -> None:
        self._began = [0.0] * len(recorded)
        self._recorded = list(recorded)

    def begin(self, column: int) -> None:
        """An episode begins."""
        self._began[column] = perf_counter()

    def end(self, column: int, recorded: Recorded | None) -> tuple[float, bool]:
        """An episode ends.

        Args:
            column: which.
            recorded: what a recorder has said of it.

        Returns:
            Seconds since it began, and whether it counts: an end about which a recorder says nothing is one of a life.
        """
        now = perf_counter()
        seconds = now - self._began[column]
        if recorded is not None:
            self._recorded[column] = True
        elif self._recorded[column]:
            return seconds, False
        self._began[column] = now
        return seconds, True


def is_recorded(env: Any) -> bool:
    """Whether a recorder is among the wrappers of an environment, single or vector.

    An end about which it says nothing, such as that of a life, is then no end of an episode.
    """
    return any(kind.__name__ in RECORDERS for layer in _layers(env) for kind in type(layer).__mro__)


def recorded_in(info: Mapping[str, Any]) -> Recorded | None:
    """What the info of an episode's last step says of the episode, if it says anything."""
    said = info.get("episode")
    if said is None:  # At nearly every end; what comes below asks an abstract class, which takes longer.
        return None
    if not isinstance(said, Mapping) or "r" not in said or "l" not in said:
        return None
    return Recorded(_number(said["r"]), int(_number(said["l"])))


def recorded_in_columns(infos: Mapping[str, Any], columns: Any) -> tuple[Any, Any, Any]:
    """The same of some sub-environments in the infos of a ``VectorEnv``, which may be among those of the last step.

    Args:
        infos: of all.
        columns: which of them, int64 ``[K]``.

    Returns:
        Where something is said, bool ``[K]``; returns, float64 ``[K]``; lengths, int64 ``[K]``.
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
    """An attribute of its own, not one that a wrapper would ask what it wraps for.

    Without a look at ``__dict__``: an object that has been asked for that reads its attributes more slowly ever after,
    which is several percent of a step of CartPole.
    """
    try:
        return object.__getattribute__(env, name)
    except AttributeError:
        return None


def _number(value: Any) -> float:
    return float(np.asarray(value).item())
