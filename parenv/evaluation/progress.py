"""Line with the progress of an evaluation and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import IO

from parenv.bench.display import Display
from parenv.evaluation.results import EvaluatedEpisode

_BAR = 20


class ProgressLine(Display):
    """Line that a terminal overwrites, and that other files get every 5 s.

    Args:
        total: Number of episodes.
        done: Number of episodes that are finished already.
        file: File. Default: standard error.
    """

    def __init__(self, total: int, done: int, file: IO[str] | None = None) -> None:
        super().__init__(file or sys.stderr)
        self._total, self._done, self._began = total, done, time.monotonic()
        self._seconds: dict[str, list[float]] = {}

    def update(self, episode: EvaluatedEpisode | None, unfinished: Mapping[str, int], last: bool = False) -> None:
        """Count an episode, and show the line if it is time.

        Args:
            episode: Episode that has finished, or ``None``.
            unfinished: Number of unfinished episodes by task.
            last: Whether nothing follows.
        """
        if episode is not None:
            self._done += 1
            self._seconds.setdefault(episode.task, []).append(episode.seconds)
        if self.is_due() or last:
            line = self._line(time_left(self._seconds, unfinished, time.monotonic() - self._began))
            self.show(line, line)

    def _line(self, left_s: float | None) -> str:
        filled = _BAR * self._done // max(1, self._total)
        left = "" if left_s is None else f", {in_hours(left_s)} left"
        return f"[{'#' * filled}{'.' * (_BAR - filled)}] {self._done:,} of {self._total:,} episodes{left}"


def time_left(seconds: Mapping[str, list[float]], unfinished: Mapping[str, int], elapsed_s: float) -> float | None:
    """Return the seconds that unfinished episodes are likely to take, or ``None`` if that is unknown.

    Args:
        seconds: Seconds of the finished episodes of each task.
        unfinished: Number of unfinished episodes of each task.
        elapsed_s: Seconds since the start.

    >>> time_left({"short": [1.0, 1.0], "long": [10.0]}, {"short": 0, "long": 3}, elapsed_s=6.0)
    15.0
    """
    spent = sum(map(sum, seconds.values()))
    if not spent:
        return None
    overall = spent / sum(map(len, seconds.values()))
    means = {task: sum(found) / len(found) for task, found in seconds.items()}
    ahead = sum(count * means.get(task, overall) for task, count in unfinished.items())
    return ahead * elapsed_s / spent


def in_hours(seconds: float) -> str:
    """Return a duration in words.

    >>> in_hours(75), in_hours(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
