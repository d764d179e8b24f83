"""What a run did, in the order in which it did it: written down, or followed step by step to do it again.

An asynchronous run depends on time in three things only: which rollout comes next, when a worker gets a credit, and
between which of its rollouts a worker answers a call. A journal has these, with the publishes between them, one line of
JSON each, and a digest of every rollout. In a run with a journal, calls wait until no rollout is under way.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError, ReplayError
from parenv.experience.rollout import NAMED, TREES
from parenv.pool.arrival import Arrival
from parenv.pool.dispatch import CreditKey, Dispatch
from parenv.protocol.data import pack

FORMAT = 1
_DERIVED = {"shifted_observations"}


class Journal:
    """No journal: nothing is written, and nothing followed."""

    is_kept = False
    is_over = False

    def dispatch(self, *arguments: Any, **more: Any) -> Dispatch:
        """What decides for an asynchronous pool."""
        return Dispatch(*arguments, **more)

    def called(self, method: str) -> None:
        """Sub-environments are asked something."""

    def taken(self, arrival: Arrival) -> None:
        """A rollout is yielded."""

    def close(self) -> None:
        """There will be no more."""


class Recorder(Journal):
    """Writes a journal as things happen.

    Args:
        path: where to; what is there is replaced.
        about: the layout of the pool, and its seed.
    """

    is_kept = True

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, Any]) -> None:
        self._file = Path(path).open("w", buffering=1, encoding="utf-8")  # noqa: SIM115
        self.write({"parenv journal": FORMAT, **about, "made with": _versions()})

    def write(self, event: Any) -> None:
        """Add a line."""
        self._file.write(json.dumps(event) + "\n")

    def dispatch(self, *arguments: Any, **more: Any) -> Dispatch:
        """What decides as ever, and writes it down."""
        return _RecordedDispatch(self, *arguments, **more)

    def called(self, method: str) -> None:
        """Write it down."""
        self.write(["call", method])

    def taken(self, arrival: Arrival) -> None:
        """Write down its digest."""
        self.write(["digest", digest(arrival)])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Script(Journal):
    """Follows a journal.

    Args:
        path: of the journal.

    Raises:
        ConfigurationError: there is none.
    """

    is_kept = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self.about, *self._events = _read(Path(path))
            if self.about["parenv journal"] != FORMAT:
                raise ValueError(f"its format is {self.about['parenv journal']}, not {FORMAT}")
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigurationError(f"{os.fspath(path)} is no journal that can be replayed: {error!r}") from error
        self._at = 0
        self._rollouts = 0

    @property
    def is_over(self) -> bool:  # type: ignore[override]
        """Whether everything has been done again."""
        return self._at == len(self._events)

    @property
    def next(self) -> Sequence[Any]:
        """The event that comes now."""
        return ["end"] if self.is_over else self._events[self._at]

    def follow(self, *event: Any) -> None:
        """Do what comes now.

        Raises:
            ReplayError: that is something else.
        """
        if list(self.next) != list(event):
            raise ReplayError(
                f"after {self._rollouts} rollouts this run does {_words(event)}, where the recorded run did "
                f"{_words(self.next)}",
                rollout=self._rollouts,
            )
        self._at += 1

    def check(self, about: Mapping[str, Any]) -> None:
        """Compare the layout of a pool with the recorded one.

        Raises:
            ConfigurationError: they differ.
        """
        for name, mine in about.items():
            if self.about.get(name) != mine:
                raise ConfigurationError(f"the recorded run has {name} {self.about.get(name)!r}, this one {mine!r}")

    def dispatch(self, *arguments: Any, **more: Any) -> Dispatch:
        """What decides as it was decided then."""
        return _ReplayedDispatch(self, *arguments, **more)

    def called(self, method: str) -> None:
        """Compare."""
        self.follow("call", method)

    def taken(self, arrival: Arrival) -> None:
        """Compare digests.

        Raises:
            ReplayError: a part of the rollout is not what it was.
        """
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
                f"{self.about['made with']}, this one with {_versions()}",
                rollout=self._rollouts,
            )
        self._at += 1
        self._rollouts += 1


class _RecordedDispatch(Dispatch):
    def __init__(self, recorder: Recorder, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._recorder = recorder

    def publish(self) -> int:
        version = super().publish()
        self._recorder.write(["publish", version])
        return version

    def issue(self) -> list[CreditKey]:
        issued = super().issue()
        for key in issued:
            self._recorder.write(["issue", *key, self.version])
        return issued

    def lose(self, worker: int) -> list[CreditKey]:
        self._recorder.write(["lost", worker])
        return super().lose(worker)

    def next(self) -> CreditKey | None:
        key = super().next()
        if key is not None:
            self._recorder.write(["next", *key])
        return key

    def gave_up(self) -> None:
        self._recorder.write(["none"])


class _ReplayedDispatch(Dispatch):
    def __init__(self, script: Script, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._script = script

    def publish(self) -> int:
        self._script.follow("publish", self.version + 1)
        return super().publish()

    def issue(self) -> list[CreditKey]:
        issued = []
        while self._script.next[0] == "issue":
            _, worker, sequence, _ = self._script.next
            self._script.follow("issue", worker, sequence, self.version)
            issued.append(self.credit(worker))
        return issued

    def lose(self, worker: int) -> list[CreditKey]:
        raise ReplayError(f"worker {worker} has died, which a replay cannot make up for", rollout=-1)

    def next(self) -> CreditKey | None:
        kind, *key = self._script.next
        if kind not in ("next", "none", "end"):
            self._script.follow("next")
        if kind != "next" or not self.take(CreditKey(*key)):
            return None
        self._script.follow(kind, *key)
        return CreditKey(*key)

    def patience(self, deadline: float) -> float:
        return math.inf if self._script.next[0] == "next" else 0.0

    def gave_up(self) -> None:
        self._script.follow("none")


def digest(arrival: Arrival) -> dict[str, Any]:
    """The version of a rollout, and for each of its fields a hash of every value in it."""
    rollout = arrival.rollout
    fields = {name: getattr(rollout, name) for name in TREES if name not in _DERIVED}
    fields |= {f"{kind}[{name!r}]": value for kind in NAMED for name, value in getattr(rollout, kind).items()}
    fields |= {"final_observations": rollout.final_observations, "final_index": rollout.final_index}
    if arrival.gradients is not None:
        fields["gradients"] = arrival.gradients
    return {"policy_version": rollout.policy_version, **{name: _hash(value) for name, value in fields.items()}}


def _hash(tree: Any) -> str:
    found = hashlib.blake2b(digest_size=8)
    for value in _values(tree):
        if isinstance(value, np.ndarray):
            found.update(value.tobytes())
        else:
            text, buffers = pack(value)
            for part in (text, *buffers):
                found.update(part)
    return found.hexdigest()


def _values(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        tree = tuple(tree.values())
    if isinstance(tree, tuple):
        for part in tree:
            yield from _values(part)
    else:
        yield tree


def _read(path: Path) -> Iterator[Any]:
    """The lines that were written completely."""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def _words(event: Sequence[Any]) -> str:
    kind, *more = event
    return {
        "publish": "a publish of version {}",
        "issue": "a credit for rollout {1} of worker {0} by version {2}",
        "next": "a rollout, the one with number {1} of worker {0}" if more else "a rollout",
        "none": "no rollout, because none had come in time",
        "call": "a call of {}",
        "digest": "a rollout",
        "lost": "without worker {}, which had died: a death is not replayed",
        "end": "nothing more",
    }[kind].format(*more)


def _versions() -> str:
    import importlib.metadata

    found = [f"Python {platform.python_version()} on {platform.machine()}"]
    for name in ("numpy", "gymnasium", "torch"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(found)
