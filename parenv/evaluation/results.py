"""Results of an evaluation: one line of JSON for each finished episode."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError, ParenvError, embedded
from parenv.evaluation.queue import QueuedEpisode
from parenv.experience.endings import LOST
from parenv.memory.trees import as_array
from parenv.process.whole_files import BINARY, lock, make_folder_of

FORMAT = 1
_KIND = "parenv evaluation"
SYNC_EVERY_S = 1.0


@dataclass(frozen=True)
class EvaluatedEpisode:
    """One episode of :func:`~parenv.evaluate`, a line of its file.

    Args:
        task: Name of the task.
        index: Index among the episodes of the task.
        seed: Seed of the reset.
        episode_return: Sum of the rewards; ``return`` in the file. NaN if the episode was lost.
        length: Number of env steps.
        success: Whether the episode is a success, or ``None`` if that is not known.
        ended_by: ``"terminated"`` or ``"truncated"``, or the reason for which the episode was lost for the last time.
        seconds: Seconds from the reset to the last step.
        infos: Chosen infos of the last step.
        error: Exception for which the episode was lost, empty for other episodes.

    >>> EvaluatedEpisode("reach", 0, 1, 9.5, 30, True, "terminated", 0.1).is_lost
    False
    """

    task: str
    index: int
    seed: int
    episode_return: float
    length: int
    success: bool | None
    ended_by: str
    seconds: float
    infos: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def is_lost(self) -> bool:
        """True if the episode was lost. Reports count it, and leave it out of means."""
        return self.ended_by in LOST

    def as_line(self) -> dict[str, Any]:
        """Return the plain data of a line."""
        lost = {"error": self.error} if self.error else {}
        return {
            "task": self.task,
            "index": self.index,
            "seed": self.seed,
            "return": None if math.isnan(self.episode_return) else self.episode_return,
            "length": self.length,
            "success": self.success,
            "ended_by": self.ended_by,
            "seconds": round(self.seconds, 6),
            "infos": as_json(self.infos),
            **lost,
        }

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> EvaluatedEpisode:
        """Make an episode from the plain data of a line."""
        more = dict(line)
        episode_return = more.pop("return")
        return cls(episode_return=math.nan if episode_return is None else float(episode_return), **more)


class ResultsFile:
    """File of an evaluation. Its first line describes the evaluation, and each other line is a finished episode.

    A line is appended by one system call when its episode has finished, so it survives the end of this process. Lines
    are synced to the disk once per second and at the end.

    Args:
        path: Path of the file. ``None``: nothing is written.
        about: Description of the evaluation.
        resume: Whether an existing file is continued.

    Attributes:
        found: Episodes that the file had.

    Raises:
        ConfigurationError: The file exists, cannot be written, or contains another evaluation.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any], resume: bool) -> None:
        self._path, self._descriptor = path, -1
        self.found: list[EvaluatedEpisode] = []
        self._synced = -math.inf
        if path is None:
            return
        make_folder_of(path)
        if not resume and path.exists():
            raise ConfigurationError(
                f"out={str(path)!r} exists already. Pass resume=True to continue it, or name another file."
            )
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY, 0o666)
        except OSError as error:
            raise ConfigurationError(f"out={str(path)!r} cannot be written: {error.strerror}.") from error
        try:
            self._begin(path, about)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._path is not None:
            try:
                self._sync()
            finally:
                os.close(self._descriptor)

    def write(self, episode: EvaluatedEpisode) -> None:
        """Append an episode.

        Raises:
            ParenvError: The file cannot be written any more, such as on a full disk.
        """
        if self._path is not None:
            self._append(episode.as_line())
            if time.monotonic() - self._synced > SYNC_EVERY_S:
                self._sync()

    def _begin(self, path: Path, about: Mapping[str, Any]) -> None:
        if not lock(self._descriptor, path, "evaluation"):
            raise ConfigurationError(
                f"out={str(path)!r} is in use by another evaluation. Wait for its end, or name another file."
            )
        header, self.found, size = read(path)
        if header is None:
            os.ftruncate(self._descriptor, 0)
            self._append({_KIND: FORMAT, **about})
            self._sync()
            return
        _check_same(path, header, about)
        os.ftruncate(self._descriptor, size)

    def _append(self, line: Mapping[str, Any]) -> None:
        content = (json.dumps(line) + "\n").encode()
        before = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, content)
            if written < len(content):
                written += os.write(self._descriptor, content[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, before)
            raise ParenvError(
                f"{self._path} cannot be written: {error.strerror}. Earlier episodes are stored. Solve this, and "
                "evaluate again with resume=True."
            ) from error

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced = time.monotonic()


def read(path: Path) -> tuple[dict[str, Any] | None, list[EvaluatedEpisode], int]:
    """Read the file of an evaluation, without a last line that was not written completely.

    Returns:
        Description, or ``None`` if the file is empty; finished episodes; and size of the complete lines in bytes.

    Raises:
        ConfigurationError: The file is not of an evaluation, or a line is damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    *lines, torn = content.split(b"\n")
    begin = json.dumps({_KIND: FORMAT})[:-1].encode()
    if not lines and torn[: len(begin)] == begin[: len(torn)]:
        return None, [], 0  # The evaluation was killed before its first line was complete.
    header = _parsed(lines[0]) if lines else None
    if not isinstance(header, dict) or header.get(_KIND) != FORMAT:
        raise ConfigurationError(f"{path} is not a file of parenv.evaluate in format {FORMAT}. Name another file.")
    found: dict[QueuedEpisode, EvaluatedEpisode] = {}
    for number, line in enumerate(lines[1:], 2):
        try:
            one = EvaluatedEpisode.of_line(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"line {number} of {path} is damaged: {embedded(error)}. Remove that line."
            ) from error
        found[QueuedEpisode(one.task, one.index)] = one
    return header, list(found.values()), len(content) - len(torn)


def as_json(value: Any) -> Any:
    """Return a value in the types of JSON. Arrays become lists, and other objects become texts."""
    if isinstance(value, Mapping):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return as_json(as_array(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _check_same(path: Path, header: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Check that a file is of the same evaluation, except for the number of episodes.

    Raises:
        ConfigurationError: It is not. The message names the differences.
    """
    differing = []
    for name, value in about.items():
        there = header.get(name)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            differing += [f"{name}[{key!r}]" for key in {**there, **value} if there.get(key) != value.get(key)]
        elif there != value:
            differing.append(
                name if isinstance(value, Mapping) or len(repr(value)) > 16 else f"{name} ({there!r} there)"
            )
    if differing:
        raise ConfigurationError(
            f"out={str(path)!r} contains another evaluation, which differs in {', '.join(differing)}. "
            "Name another file, or evaluate with the same arguments."
        )
