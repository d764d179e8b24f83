"""Replayer of a recorded run."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parenv.errors import ConfigurationError, ReplayError
from parenv.pool.arrival import Arrival
from parenv.pool.dispatch import CreditKey, Dispatch
from parenv.pool.events import Delivered, Event, Observer, Questioned
from parenv.protocol.digests import rows_of
from parenv.records.recorder import FORMAT, digest, versions

_WITHOUT_DIGESTS = 1
_WORDS = {
    "publish": "a publish of version {}",
    "issue": "a credit for rollout {1} of worker {0} by version {2}",
    "next": "a rollout, the one with number {1} of worker {0}",
    "none": "no rollout, because none had come in time",
    "call": "a call of {}",
    "digest": "a rollout",
    "lost": "without worker {}, which had died: a death is not replayed",
    "end": "nothing more",
}


class Replayer(Observer):
    """Has a pool repeat a recorded run.

    Args:
        path: Path of the recording.

    Raises:
        ConfigurationError: There is no recording, or it is damaged.
    """

    orders = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self._about, self._events = _read(Path(path))
        except (OSError, ValueError, LookupError, TypeError) as error:
            reason = error if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise ConfigurationError(
                f"{os.fspath(path)} cannot be replayed: {reason}. Give a recording that is not damaged."
            ) from error
        self.seed = self._about["seed"]
        self._at = 0
        self._rollouts = 0

    @property
    def is_over(self) -> bool:  # type: ignore[override]
        """Whether all of the recorded run has been repeated."""
        return self._at == len(self._events)

    @property
    def next(self) -> Sequence[Any]:
        """Next event of the recorded run."""
        return ["end"] if self.is_over else self._events[self._at]

    def follow(self, *event: Any) -> None:
        """Take an event of this run as the next one.

        Raises:
            ReplayError: The recorded run has another event there.
        """
        if list(self.next) != list(event):
            raise ReplayError(
                f"after {self._rollouts} rollouts this run does {_words(event)}, where the recorded run did "
                f"{_words(self.next)}",
                rollout=self._rollouts,
            )
        self._at += 1

    def begin(self, about: Mapping[str, Any]) -> None:
        """Compare the layout of a pool with the recorded one.

        Raises:
            ConfigurationError: The layouts differ.
        """
        for name, mine in about.items():
            if self._about.get(name) != mine:
                raise ConfigurationError(
                    f"the recorded run has {name} {self._about.get(name)!r}, this one {mine!r}: make the pool alike"
                )

    def dispatch(self, *arguments: Any, **more: Any) -> Dispatch:
        """Return a scheduler that repeats the recorded decisions."""
        return _ReplayedDispatch(self, *arguments, **more)

    def hear(self, event: Event) -> None:
        """Compare an event with the recorded one.

        Raises:
            ReplayError: The events or the rollouts differ.
        """
        match event:
            case Questioned(method):
                self.follow("call", method)
            case Delivered(Arrival() as arrival):
                self._compare(arrival)

    def _compare(self, arrival: Arrival) -> None:
        kind, recorded = (*self.next, None)[:2]
        if kind == "end":
            return
        if kind != "digest":
            self.follow("digest")
        mine = digest(arrival)
        different = [name for name in {**recorded, **mine} if recorded.get(name) != mine.get(name)]
        if different:
            who = arrival.rollout.worker
            raise ReplayError(
                f"rollout {self._rollouts}, by {'all workers' if who is None else f'worker {who}'}, is the first that "
                f"is not what was recorded; different: {', '.join(different)}. The run was made with "
                f"{self._about['made with']}, this one with {versions()}",
                rollout=self._rollouts,
            )
        self._at += 1
        self._rollouts += 1


class _ReplayedDispatch(Dispatch):
    def __init__(self, replayer: Replayer, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._replayer = replayer

    def publish(self) -> int:
        self._replayer.follow("publish", self.version + 1)
        return super().publish()

    def issue(self) -> list[CreditKey]:
        issued = []
        while self._replayer.next[0] == "issue":
            _, worker, sequence, _ = self._replayer.next
            self._replayer.follow("issue", worker, sequence, self.version)
            issued.append(self.credit(worker))
        return issued

    def lose(self, worker: int) -> list[CreditKey]:
        raise ReplayError(f"worker {worker} has died, which a replay cannot make up for", rollout=-1)

    def next(self) -> CreditKey | None:
        kind, *key = self._replayer.next
        if kind not in ("next", "none", "end"):
            self._replayer.follow("next")
        if kind != "next" or not self.take(CreditKey(*key)):
            return None
        self._replayer.follow(kind, *key)
        return CreditKey(*key)

    def patience(self, deadline: float) -> float:
        return math.inf if self._replayer.next[0] == "next" else 0.0

    def gave_up(self) -> None:
        self._replayer.follow("none")


def _words(event: Sequence[Any]) -> str:
    kind, *more = event
    return _WORDS["digest" if kind == "next" and not more else kind].format(*more)


def _read(path: Path) -> tuple[dict[str, Any], list[list[Any]]]:
    about, *events = rows_of(path.read_text(encoding="utf-8"))
    if about["parenv journal"] not in (_WITHOUT_DIGESTS, FORMAT):
        raise ValueError(f"its format is {about['parenv journal']}, not {FORMAT}")
    if unknown := {kind for kind, *_ in events} - _WORDS.keys():
        raise ValueError(f"it has lines of the unknown kinds {', '.join(sorted(unknown))}")
    return about, events
