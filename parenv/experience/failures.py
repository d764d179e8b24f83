"""Failures of sub-environments and workers, counted in bounded memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_TEXTS = 100
"""Number of sub-environments whose last error is kept."""
MAX_ERROR, MAX_TRACEBACK = 500, 8_000
"""Number of characters of an error and of a traceback that are kept."""


class Failure(NamedTuple):
    """One failure of a sub-environment or of its worker.

    Args:
        worker: Index of the worker.
        env_id: Sub-environment at work, or ``None``.
        ended_by: Reason for which episodes ended, one of :data:`~parenv.experience.endings.LOST`.
        doing: Activity of the worker, such as ``"step"``.
        error: Exception, or end of the process, as text.
        traceback: Traceback of the exception or stack of the process; empty if there is none.
    """

    worker: int
    env_id: int | None
    ended_by: str
    doing: str
    error: str
    traceback: str = ""

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Failure:
        """Make a failure from its fields by name, as a trace has them."""
        return cls(*(data[name] for name in cls._fields))

    def shortened(self) -> Failure:
        """Return the failure with texts of a bounded length. The end of a traceback names the line."""
        return self._replace(error=self.error[:MAX_ERROR], traceback=self.traceback[-MAX_TRACEBACK:])


@dataclass(frozen=True)
class EnvFailures:
    """Failures of one sub-environment, or of a worker while no sub-environment was at work.

    Args:
        worker: Index of the worker.
        env_id: Sub-environment, or ``None``.
        count: Number of failures.
        reasons: Number of failures by reason, such as ``"environment_error"``.
        doing: Activity at the last failure, such as ``"step"``.
        error: Last exception, or end of the process, as text.
        traceback: Last traceback, or stack of the process, as text. Empty if there is none, or if many other
            sub-environments have failed since.

    >>> EnvFailures(worker=0, env_id=3, count=2, reasons={"environment_error": 2}, doing="step").count
    2
    """

    worker: int
    env_id: int | None
    count: int
    reasons: Mapping[str, int]
    doing: str = ""
    error: str = ""
    traceback: str = ""

    @property
    def who(self) -> str:
        """Name of the sub-environment or of the worker."""
        return f"worker {self.worker}" if self.env_id is None else f"env_id {self.env_id}"


@dataclass
class FailureLog:
    """Counts failures, and lost episodes by sub-environment and reason. Keeps the last failure of each sub-environment.

    Attributes:
        lost_episodes: Number of lost episodes by reason, for each sub-environment.
    """

    lost_episodes: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _reasons: defaultdict[tuple[int, int | None], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _last: dict[tuple[int, int | None], Failure] = field(default_factory=dict)

    def add(self, failure: Failure) -> None:
        """Count a failure."""
        key = failure.worker, failure.env_id
        self._reasons[key][failure.ended_by] += 1
        self._last.pop(key, None)
        self._last[key] = failure.shortened()
        if len(self._last) > MOST_TEXTS:
            del self._last[next(iter(self._last))]

    def add_lost(self, episodes: Iterable[tuple[int, str]]) -> None:
        """Count lost episodes, given as env_id and reason."""
        for env_id, ended_by in episodes:
            self.lost_episodes[env_id][ended_by] += 1

    def lost_by_reason(self) -> dict[str, int]:
        """Return the number of lost episodes by reason."""
        return dict(sum(list(self.lost_episodes.values()), Counter[str]()))

    def lost_by_env(self) -> dict[int, dict[str, int]]:
        """Return the number of lost episodes by reason, for each sub-environment."""
        return {env_id: dict(found) for env_id, found in sorted(self.lost_episodes.items())}

    def failures(self) -> tuple[EnvFailures, ...]:
        """Return the failures by sub-environment, beginning with the largest number."""
        rows = []
        for key, reasons in list(self._reasons.items()):  # Any thread may ask for statistics.
            last = self._last.get(key)
            texts = () if last is None else (last.doing, last.error, last.traceback)
            rows.append(EnvFailures(*key, reasons.total(), dict(reasons), *texts))
        return tuple(sorted(rows, key=lambda row: -row.count))
