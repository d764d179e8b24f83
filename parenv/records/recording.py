"""Recorder of the decisions of a run, and replayer that has a pool repeat them.

Three things in an asynchronous run depend on time: which rollout comes next, when a worker gets a credit, and between
which of its rollouts a worker answers a call. A recording has these and the publishes in their order, one line of JSON
each, and a digest of every rollout. Each line ends in a digest, by which a replay notices damage. In a recorded run,
calls wait until no rollout is in progress.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from parenv.errors import ConfigurationError, ReplayError, embedded
from parenv.experience.agent_rollouts import AgentRollout, RolloutsByPolicy
from parenv.experience.rollout import NAMED, TREES
from parenv.libraries import installed_version
from parenv.memory.trees import as_array, leaves_in
from parenv.platform import system
from parenv.pool.arrival import Arrival
from parenv.pool.dispatch import CreditKey, Dispatch
from parenv.pool.events import Called, Delivered, Observer, PoolEvent
from parenv.process.whole_files import lock, make_folder_of
from parenv.protocol.data import pack
from parenv.protocol.digests import SealedLines, new_digest, rows_of

FORMAT = 2
_DERIVED = {"shifted_observations", "resetting"}


class Recorder(Observer):
    """Writes the decisions of an asynchronous run, and a digest of every rollout, as they happen.

    Args:
        path: Path of the file, which is replaced if it exists. A missing folder is made.
    """

    orders = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file: TextIO | None = None
        self._lines = SealedLines()

    def begin(self, about: Mapping[str, Any]) -> None:
        """Open the file and describe the pool.

        Raises:
            ConfigurationError: Another run is recorded there, or the folder cannot be made.
        """
        make_folder_of(self._path)
        self._file = self._path.open("a", buffering=1, encoding="utf-8")
        if not lock(self._file.fileno(), self._path, "run"):
            self._file.close()
            raise ConfigurationError(
                f"record={str(self._path)!r} cannot be used while another run is recorded there. Name another file."
            )
        if self._path.is_file():
            self._file.truncate(0)
        self.write({"parenv journal": FORMAT, **about, "made with": versions()})

    def dispatch(self, *arguments: Any, **more: Any) -> Dispatch:
        """Return a scheduler that records its decisions."""
        return _RecordedDispatch(self, *arguments, **more)

    def hear(self, event: PoolEvent) -> None:
        """Record an event that is not a decision of the scheduler."""
        match event:
            case Called(method):
                self.write(["call", method])
            case Delivered(Arrival() as arrival):
                self.write(["digest", digest(arrival)])

    def write(self, line: Any) -> None:
        """Add a line."""
        assert self._file is not None
        try:
            self._file.write(self._lines.line(line))
        except OSError as error:
            why = f"{error.strerror}, so the run cannot be recorded any more. Make room on the disk"
            raise OSError(error.errno, why, str(self._path)) from None

    def close(self) -> None:
        """Close the file."""
        if self._file is None or self._file.closed:
            return
        system.unlock(self._file.fileno())
        # Each line was flushed when it was written. A line that failed has raised its error already.
        with contextlib.suppress(OSError):
            self._file.close()


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


def digest(arrival: Arrival) -> dict[str, Any]:
    """Return the version of a rollout, and a hash of all values of each field."""
    rollout: Any = arrival.rollout
    if isinstance(rollout, RolloutsByPolicy):
        return {name: digest(arrival._replace(rollout=rows)) for name, rows in rollout.items()} | {
            "policy_version": rollout.policy_version,
            "states": _hash(rollout.states),
        }
    fields = {name: getattr(rollout, name) for name in TREES if name not in _DERIVED}
    fields |= {f"{kind}[{name!r}]": value for kind in NAMED for name, value in getattr(rollout, kind).items()}
    fields |= {"final_observations": rollout.final_observations, "final_index": rollout.final_index}
    if isinstance(rollout, AgentRollout):
        fields |= {"alive": rollout.alive, "first_versions": rollout.first_versions, "agents": list(rollout.agents)}
    if arrival.gradients is not None:
        fields["gradients"] = arrival.gradients
    return {"policy_version": rollout.policy_version, **{name: _hash(value) for name, value in fields.items()}}


def _hash(tree: Any) -> str:
    found = new_digest()
    for _, value in leaves_in(tree):
        if isinstance(value, np.ndarray) or hasattr(value, "detach"):
            found.update(as_array(value).tobytes())
        else:
            text, buffers = pack(value)
            for part in (text, *buffers):
                found.update(part)
    return found.hexdigest()


def versions() -> str:
    """Return the versions of Python and libraries that a run depends on."""
    libraries = [f"{name} {installed_version(name)}" for name in ("numpy", "gymnasium", "torch")]
    return ", ".join([f"Python {platform.python_version()} on {platform.machine()}", *libraries])


_WITHOUT_DIGESTS = 1
_WORDS = {
    "publish": "a publish of version {}",
    "issue": "a request for rollout {1} of worker {0} by version {2}",
    "next": "the delivery of rollout {1} of worker {0}",
    "none": "no rollout within the time limit",
    "call": "a call of {}",
    "digest": "the delivery of a rollout",
    "lost": "the death of worker {}, which cannot be replayed",
    "end": "its end",
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
                f"{os.fspath(path)} cannot be replayed: {embedded(reason)}. Give a recording that is not damaged."
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
                f"the run must repeat the recording, but after {self._rollouts} rollouts the recording has "
                f"{_words(self.next)}, and this run has {_words(event)}. Use the same code, arguments and order of "
                "calls.",
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
                    f"{name} must be {self._about.get(name)!r} as in the recorded run, got {mine!r}. Make the pool "
                    "with the same arguments."
                )

    def dispatch(self, *arguments: Any, **more: Any) -> Dispatch:
        """Return a scheduler that repeats the recorded decisions."""
        return _ReplayedDispatch(self, *arguments, **more)

    def hear(self, event: PoolEvent) -> None:
        """Compare an event with the recorded one.

        Raises:
            ReplayError: The events or the rollouts differ.
        """
        match event:
            case Called(method):
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
                f"rollout {self._rollouts} of {'all workers' if who is None else f'worker {who}'} must be equal to the "
                f"recorded one, but differs in {', '.join(different)}. The recording was made with "
                f"{self._about['made with']}, this run uses {versions()}.",
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
        raise ReplayError(f"worker {worker} died, so the run cannot be replayed. Start the replay again.", rollout=-1)

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
        raise ValueError(f"the format must be {FORMAT}, got {about['parenv journal']}")
    if unknown := {kind for kind, *_ in events} - _WORDS.keys():
        raise ValueError(f"lines have the unknown kinds {', '.join(sorted(unknown))}")
    return about, events
