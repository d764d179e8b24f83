"""Counts of a stream, which its criteria compare and a resumable run saves."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from parenv.experience.gradient import Gradient
from parenv.options import Stop


@dataclass
class StreamCounts:
    """Counts of a stream from its beginning, including the part in a process that has ended.

    Args:
        env_steps: Number of env steps in the items yielded.
        episodes: Number of episodes that ended in them.
        mean_return: Mean return of the window, NaN while fewer episodes have ended.
        seconds: Seconds in which the stream was in progress.
        evaluation_return: Mean return of the last evaluation, NaN before the first.
        returns: Returns of the last episodes, as many as fit into the window.
    """

    env_steps: int = 0
    episodes: int = 0
    mean_return: float = math.nan
    seconds: float = 0.0
    evaluation_return: float = math.nan
    returns: deque[float] = field(default_factory=deque)

    def meet(self, stop: Stop) -> bool:
        """Return whether a criterion is met."""
        reason = stop.reason(
            env_steps=self.env_steps,
            episodes=self.episodes,
            mean_return=self.mean_return,
            seconds=self.seconds,
            evaluation_return=self.evaluation_return,
        )
        return reason is not None

    def add(self, item: Any) -> None:
        """Count the env steps and episodes of an item."""
        self.env_steps += item.num_samples if isinstance(item, Gradient) else item.num_steps
        self.episodes += len(item.episodes.finished)

    def state(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {**vars(self), "returns": list(self.returns)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the counts of a state."""
        return cls(**{**state, "returns": deque(state["returns"])})


class StreamLog:
    """Counts of all streams of a run that have criteria, in the order in which the streams began.

    Args:
        former: Counts of the streams in processes that have ended. The first stream of this process continues the first
            of them, and so on.
    """

    def __init__(self, former: Iterable[StreamCounts] = ()) -> None:
        self._former, self._begun = list(former), list[StreamCounts]()

    def begin(self, stop: Stop) -> StreamCounts:
        """Return the counts of a stream that begins."""
        if stop == Stop(window=stop.window):
            return StreamCounts()
        place = len(self._begun)
        self._begun.append(self._former[place] if place < len(self._former) else StreamCounts())
        return self._begun[place]

    def state(self) -> list[dict[str, Any]]:
        """Return all counts as plain data, including streams that have not begun again."""
        return [counts.state() for counts in self._begun + self._former[len(self._begun) :]]
