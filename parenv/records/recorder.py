"""Recorder of the decisions of a run, with which the run can be repeated.

Three things in an asynchronous run depend on time: which rollout comes next, when a worker gets a credit, and between
which of its rollouts a worker answers a call. A recording has these and the publishes in their order, one line of JSON
each, and a digest of every rollout. Each line ends in a digest, by which a replay notices damage. In a recorded run,
calls wait until no rollout is in progress.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from parenv.errors import ConfigurationError
from parenv.experience.agent_rollouts import AgentRollout, RolloutsByPolicy
from parenv.experience.rollout import NAMED, TREES
from parenv.libraries import installed_version
from parenv.memory.trees import as_array, leaves_in
from parenv.pool.arrival import Arrival
from parenv.pool.dispatch import CreditKey, Dispatch
from parenv.pool.events import Delivered, Event, Observer, Questioned
from parenv.process.whole_files import make_folder_of
from parenv.protocol.data import pack
from parenv.protocol.digests import SealedLines, new_digest

FORMAT = 2
_log = logging.getLogger("parenv")
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
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigurationError(
                f"record={str(self._path)!r} is what another run is recorded in just now"
            ) from None
        except OSError:
            _log.debug("%s is on a file system without locks", self._path)
        if self._path.is_file():
            self._file.truncate(0)
        self.write({"parenv journal": FORMAT, **about, "made with": versions()})

    def dispatch(self, *arguments: Any, **more: Any) -> Dispatch:
        """Return a scheduler that records its decisions."""
        return _RecordedDispatch(self, *arguments, **more)

    def hear(self, event: Event) -> None:
        """Record an event that is not a decision of the scheduler."""
        match event:
            case Questioned(method):
                self.write(["call", method])
            case Delivered(Arrival() as arrival):
                self.write(["digest", digest(arrival)])

    def write(self, line: Any) -> None:
        """Add a line."""
        assert self._file is not None
        try:
            self._file.write(self._lines.line(line))
        except OSError as error:
            why = f"{error.strerror}, so that what this run does cannot be recorded"
            raise OSError(error.errno, why, str(self._path)) from None

    def close(self) -> None:
        """Close the file."""
        if self._file is None or self._file.closed:
            return
        with contextlib.suppress(OSError):
            # A child process that the user has forked has the file too.
            fcntl.flock(self._file, fcntl.LOCK_UN)
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
