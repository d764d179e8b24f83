"""Data of a run for a report, read from the file that ``pool.trace(path)`` writes. Its end may be missing."""

from __future__ import annotations

import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError
from parenv.experience.endings import ENVIRONMENT_ERROR, WORKER_DIED
from parenv.experience.failures import Failure, FailureLog
from parenv.records.trace import DRIVER, FORMAT

WINDOW = 100
"""Number of episodes in a mean return, as in the statistics of a pool."""
NESTED = ("publish", "evaluate")
"""Activities of the main process that are a part of its learning time."""
UNRECORDED = "unrecorded"


@dataclass(frozen=True)
class Track:
    """Activities of one worker or of the main process. Seconds count from the first request for a rollout.

    Args:
        name: ``"driver"``, or a name such as ``"worker 3"``.
        pieces: Begin and end of each activity in seconds, float64 ``[N, 2]``, by name.
        env_steps: Number of env steps in a worker's rollouts.
    """

    name: str
    pieces: Mapping[str, Any]
    env_steps: int

    @property
    def seconds(self) -> float:
        """Seconds until the end of the last piece."""
        return max((float(pieces[:, 1].max()) for pieces in self.pieces.values() if len(pieces)), default=0.0)

    def fractions(self) -> dict[str, float]:
        """Return the share of time of each activity. The rest, such as a lost rollout, is :data:`UNRECORDED`."""
        spent = {name: float((pieces[:, 1] - pieces[:, 0]).sum()) for name, pieces in self.pieces.items()}
        if "learn" in spent:
            learned_until = self.pieces["learn"][:, 1].max(initial=0.0)
            for pieces in (self.pieces[name] for name in NESTED if name in self.pieces):
                inside = pieces[pieces[:, 0] < learned_until]
                spent["learn"] -= float((inside[:, 1] - inside[:, 0]).sum())
        total = self.seconds
        fractions = {name: max(0.0, seconds) / total for name, seconds in spent.items()} if total else {}
        return {**fractions, UNRECORDED: max(0.0, 1.0 - sum(fractions.values()))} if total else {}


@dataclass(frozen=True)
class Returns:
    """Returns of episodes in the order of their arrival, or mean returns of evaluations. Fields have shape ``[N]``.

    Args:
        values: Returns, NaN if a return is not finite.
        env_steps: Env steps of the whole run at that time. NaN for evaluations in traces of older versions of parenv.
        seconds: Seconds at that time.
    """

    values: Any
    env_steps: Any
    seconds: Any

    def __len__(self) -> int:
        return len(self.values)

    def running_mean(self, window: int = WINDOW) -> Any:
        """Return the mean of the last finite returns at each episode, ``[N]``, NaN without any."""
        known = np.isfinite(self.values)
        sums, counts = np.cumsum(np.where(known, self.values, 0.0)), np.cumsum(known)
        sums[window:], counts[window:] = sums[window:] - sums[:-window], counts[window:] - counts[:-window]
        return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


@dataclass(frozen=True)
class Timeline:
    """Everything that a trace contains about a run.

    Args:
        name: Name of the file.
        about: Facts about the pool, see :class:`parenv.records.trace.TraceWriter`.
        is_finished: Whether the file was closed.
        driver: Activities of the main process.
        workers: Activities of the workers.
        arrived_s: Arrival of each rollout in seconds, float64 ``[N]``.
        env_steps: Env steps of each rollout, int64 ``[N]``.
        policy_lag: Policy lag of each rollout in publishes, int64 ``[N]``.
        episodes: Returns of the episodes that ended in these rollouts.
        lengths: Lengths of these episodes in env steps, int64 ``[K]``.
        evaluations: Mean returns of evaluations.
        lost_s: Times at which a worker or a sub-environment was lost, in seconds.
        failures: Failures and lost episodes, counted by sub-environment.
    """

    name: str
    about: Mapping[str, Any]
    is_finished: bool
    driver: Track
    workers: tuple[Track, ...]
    arrived_s: Any
    env_steps: Any
    policy_lag: Any
    episodes: Returns
    lengths: Any
    evaluations: Returns
    lost_s: Any
    failures: FailureLog

    @property
    def tracks(self) -> tuple[Track, ...]:
        """Tracks of the main process and of the workers."""
        return (self.driver, *self.workers)

    @property
    def seconds(self) -> float:
        """Seconds from the first request for a rollout to the end."""
        return max(track.seconds for track in self.tracks)

    @property
    def total_env_steps(self) -> int:
        """Env steps in all rollouts."""
        return int(self.env_steps.sum())

    @property
    def restarts(self) -> int:
        """Number of worker processes that replaced another one."""
        return sum(len(track.pieces.get("restart", ())) for track in self.workers)

    def env_steps_at(self, seconds: float) -> float:
        """Return the env steps that had arrived at a time, including those before the trace."""
        before = int(np.searchsorted(self.arrived_s, seconds, "right"))
        return float(self.about["env_steps"] + self.env_steps[:before].sum())


def find_traces(path: Path) -> list[Path]:
    """Return a path if it is a trace, or the traces in a directory, sorted by name.

    Raises:
        ConfigurationError: There is no trace.
    """
    found = sorted(filter(Path.is_file, path.glob("*.json"))) if path.is_dir() else [path]
    traces = [one for one in found if _is_trace(one)]
    if not traces:
        there = f"the directory {path} has no trace" if path.is_dir() else f"{path} is not a trace of a run"
        raise ConfigurationError(f'{there}. Call pool.trace("trace.json") in the run to write one.')
    return traces


def read_timeline(path: Path) -> Timeline:
    """Read a trace.

    Raises:
        ConfigurationError: The file is not a trace, or one of its lines cannot be read.
    """
    reader, torn = _Reader(), 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            # Only the last line can be incomplete, if the run was killed or is in progress.
            if torn:
                raise ConfigurationError(f"the trace {path} is damaged: line {torn} is not an event. Remove it.")
            try:
                reader.add_line(line.strip().rstrip(","))
            except (ValueError, LookupError, TypeError):
                torn = number
    if reader.about.get("parenv trace") != FORMAT:
        raise ConfigurationError(
            f"{path} must be a trace of format {FORMAT}, got {reader.about.get('parenv trace')!r}. Use the version of "
            "parenv that wrote it."
        )
    return reader.timeline(path.name)


def _is_trace(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = "".join(file.readline(10_000) for _ in range(3))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    return head.startswith("[") and '"parenv trace"' in head


class _Reader:
    """Reader of events. It keeps numbers in arrays, because the trace of a long run has millions of events."""

    def __init__(self) -> None:
        self.about: Mapping[str, Any] = {}
        self._is_finished = False
        self._pieces: dict[int, dict[str, array[float]]] = defaultdict(lambda: defaultdict(lambda: array("d")))
        self._env_steps: Counter[int] = Counter()
        self._rollouts, self._episodes, self._evaluations, self._lost = (array("d") for _ in range(4))
        self._failures = FailureLog()

    def add_line(self, line: str) -> None:
        """Read the next line, without its comma."""
        self._is_finished = line == "]"
        if line not in ("", "[", "]"):
            self._add(json.loads(line))

    def timeline(self, name: str) -> Timeline:
        """Return the timeline of all events so far."""
        driver, *workers = map(self._track, range(1 + len(self.about["sub-environments of each worker"])))
        arrived, env_steps, lag = _columns(self._rollouts)
        rollout, returns, lengths = _columns(self._episodes)
        evaluated, at_env_steps, means = _columns(self._evaluations)
        arrived_s, rollout = self._seconds(arrived), rollout.astype(np.int64)
        so_far = self.about["env_steps"] + np.cumsum(env_steps)
        return Timeline(
            name=name,
            about=self.about,
            is_finished=self._is_finished,
            driver=driver,
            workers=tuple(workers),
            arrived_s=arrived_s,
            env_steps=env_steps.astype(np.int64),
            policy_lag=lag.astype(np.int64),
            episodes=Returns(returns, so_far[rollout], arrived_s[rollout]),
            lengths=lengths.astype(np.int64),
            evaluations=Returns(means, at_env_steps, self._seconds(evaluated)),
            lost_s=self._seconds(self._lost),
            failures=self._failures,
        )

    def _add(self, event: Mapping[str, Any]) -> None:
        about: Mapping[str, Any] = event.get("args", {})
        match event["ph"], event["name"]:
            case "M", "parenv":
                self.about = about
            case "X", name:
                self._pieces[event["tid"]][name].extend((event["ts"], event["ts"] + event["dur"]))
                if name == "env":
                    self._env_steps[event["tid"]] += about["env_steps"]
            case "i", "rollout":
                returns, number = about.get("returns", ()), len(self._rollouts) // 3
                for value, length in zip(returns, about.get("lengths", ()), strict=True):
                    self._episodes.extend((number, _number(value), length))
                self._failures.add_lost(about.get("lost", ()))
                self._rollouts.extend((event["ts"], about["env_steps"], about["policy_lag"]))
            case "i", "evaluated":
                numbers = _number(about.get("env_steps")), _number(about["mean return"])
                self._evaluations.extend((event["ts"], *numbers))
            case "i", ("lost" | "replaced") as name:
                self._lost.append(event["ts"])
                self._failures.add(_failure(event["tid"] - DRIVER - 1, name, about))

    def _seconds(self, microseconds: Any) -> Any:
        since = next(iter(self._pieces[DRIVER]["wait"]), float("inf"))
        return np.maximum(0.0, 1e-6 * (np.array(microseconds, np.float64) - since))

    def _track(self, number: int) -> Track:
        name, track = "driver" if number == 0 else f"worker {number - 1}", DRIVER + number
        pieces = {name: self._seconds(times).reshape(-1, 2) for name, times in list(self._pieces[track].items())}
        return Track(name, pieces, self._env_steps[track])


def _columns(rows: array[float]) -> Any:
    """Return the columns of rows with three numbers each."""
    return np.array(rows, np.float64).reshape(-1, 3).T


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _failure(worker: int, what: str, about: Mapping[str, Any]) -> Failure:
    if "ended_by" in about:
        return Failure.of_data(about)
    # A trace of parenv 0.2.0.
    ended_by = WORKER_DIED if what == "lost" else ENVIRONMENT_ERROR
    return Failure(worker, None, ended_by, "", about["reason"])
