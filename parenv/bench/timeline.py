"""Data of a run for a report, read from the file that ``pool.trace(path)`` writes. Its end may be missing."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
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
        env_steps: Env steps of a worker's rollouts, int64 ``[N]``, one value for each piece of ``"env"``.
    """

    name: str
    pieces: Mapping[str, Any]
    env_steps: Any

    @property
    def seconds(self) -> float:
        """Seconds until the end of the last piece."""
        return max((float(pieces[:, 1].max()) for pieces in self.pieces.values() if len(pieces)), default=0.0)

    def fractions(self) -> dict[str, float]:
        """Return the share of time of each activity. The rest, such as a lost rollout, is :data:`UNRECORDED`."""
        spent = {name: float((pieces[:, 1] - pieces[:, 0]).sum()) for name, pieces in self.pieces.items()}
        if "learn" in spent:
            learned_until = self.pieces["learn"][:, 1].max(initial=0.0)
            for name in NESTED:
                pieces = self.pieces.get(name, np.zeros((0, 2)))
                pieces = pieces[pieces[:, 0] < learned_until]
                spent["learn"] -= float((pieces[:, 1] - pieces[:, 0]).sum())
        total = self.seconds
        fractions = {name: max(0.0, seconds) / total for name, seconds in spent.items()} if total else {}
        return {**fractions, UNRECORDED: max(0.0, 1.0 - sum(fractions.values()))} if total else {}

    def env_steps_until(self, seconds: Any) -> Any:
        """Return the env steps collected until each of ``N`` times, interpolated within a rollout, ``[N]``."""
        if not len(self.env_steps):
            return np.zeros(len(seconds))
        total = np.cumsum(self.env_steps)
        # A trace that breaks off can have a piece of acting without its piece of stepping.
        began, ended = self.pieces["act"][: len(total), 0], self.pieces["env"][:, 1]
        times = np.stack([began, ended], 1).ravel()
        return np.interp(seconds, times, np.stack([total - self.env_steps, total], 1).ravel())


@dataclass(frozen=True)
class Loss:
    """Loss of a worker or a sub-environment.

    Args:
        what: ``"worker"`` or ``"sub-environment"``.
        worker: Index of the worker.
        seconds: Time of the loss.
        reason: Reason as text.
    """

    what: str
    worker: int
    seconds: float
    reason: str

    @property
    def who(self) -> str:
        """Name of the lost worker or sub-environment."""
        return f"worker {self.worker}" if self.what == "worker" else f"{self.what} of worker {self.worker}"


@dataclass(frozen=True)
class Episodes:
    """Finished episodes in the order of their arrival. Each field has shape ``[K]``.

    Args:
        returns: Returns, NaN if a return is not finite.
        lengths: Lengths in env steps.
        env_steps: Env steps of the whole run at the arrival.
        seconds: Time of the arrival.
    """

    returns: Any
    lengths: Any
    env_steps: Any
    seconds: Any

    def __len__(self) -> int:
        return len(self.returns)

    def running_mean(self, window: int = WINDOW) -> Any:
        """Return the mean of the last finite returns at each episode, ``[K]``, NaN without any."""
        known = np.isfinite(self.returns)
        sums = np.cumsum(np.where(known, self.returns, 0.0))
        counts = np.cumsum(known)
        sums[window:], counts[window:] = sums[window:] - sums[:-window], counts[window:] - counts[:-window]
        return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


@dataclass(frozen=True)
class Evaluations:
    """Evaluations of the policy. Each field has shape ``[N]``.

    Args:
        seconds: Time of the end of each evaluation.
        env_steps: Env steps of the run at its begin, NaN in traces of older versions of parenv.
        mean_returns: Mean returns, NaN if a mean is not finite.
    """

    seconds: Any
    env_steps: Any
    mean_returns: Any


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
        episodes: Episodes that ended in these rollouts.
        evaluations: Evaluations of the policy.
        losses: Losses of workers and sub-environments.
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
    episodes: Episodes
    evaluations: Evaluations
    losses: tuple[Loss, ...]
    failures: FailureLog

    @property
    def tracks(self) -> tuple[Track, ...]:
        """Tracks of the main process and of the workers."""
        return (self.driver, *self.workers)

    @property
    def num_envs(self) -> int:
        """Number of sub-environments in all workers together."""
        return sum(self.about["sub-environments of each worker"])

    @property
    def seconds(self) -> float:
        """Seconds from the first request for a rollout to the end."""
        return max([track.seconds for track in self.tracks])

    @property
    def total_env_steps(self) -> int:
        """Env steps in all rollouts."""
        return int(self.env_steps.sum())

    @property
    def env_steps_per_second(self) -> float:
        """Mean env steps per second of the whole run."""
        return self.total_env_steps / self.seconds if self.seconds else 0.0

    @property
    def restarts(self) -> int:
        """Number of worker processes that replaced another one."""
        return sum(len(track.pieces.get("restart", ())) for track in self.workers)

    @property
    def cycle_s(self) -> float:
        """Median seconds from one rollout of a worker to its next, or the whole time without a next one."""
        cycles = [np.diff(track.pieces["env"][:, 1]) for track in self.workers if "env" in track.pieces]
        known = np.concatenate(cycles) if cycles else np.zeros(0)
        # Rollouts that ended before the first request all have time 0.
        known = known[known > 0]
        return float(np.median(known)) if len(known) else self.seconds

    def env_steps_at(self, seconds: float) -> float:
        """Return the env steps that had arrived at a time, including those before the trace."""
        before = int(np.searchsorted(self.arrived_s, seconds, "right"))
        return float(self.about["env_steps"] + self.env_steps[:before].sum())


_LOST = {"lost": "worker", "replaced": "sub-environment"}


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
    """Reader of events, which collects them in arrays."""

    def __init__(self) -> None:
        self.about: Mapping[str, Any] = {}
        self._is_finished = False
        self._since_us: float | None = None
        self._pieces: dict[int, dict[str, array[float]]] = defaultdict(lambda: defaultdict(lambda: array("d")))
        self._worker_env_steps: dict[int, array[int]] = defaultdict(lambda: array("q"))
        self._arrived_us, self._env_steps, self._lags = array("d"), array("q"), array("q")
        self._returns, self._lengths, self._rollouts = array("d"), array("q"), array("q")
        self._evaluated_us, self._evaluated = array("d"), array("d")
        self._losses: list[tuple[str, int, float, str]] = []
        self._failures = FailureLog()

    def add_line(self, line: str) -> None:
        """Read the next line, without its comma."""
        self._is_finished = line == "]"
        if line not in ("", "[", "]"):
            self._add(json.loads(line))

    def timeline(self, name: str) -> Timeline:
        """Return the timeline of all events so far."""
        num_workers = len(self.about["sub-environments of each worker"])
        driver, *workers = map(self._track, range(DRIVER, DRIVER + 1 + num_workers))
        rollouts = np.array(self._rollouts, np.int64)
        arrived_s, env_steps = self._seconds(self._arrived_us), np.array(self._env_steps, np.int64)
        so_far = self.about["env_steps"] + np.cumsum(env_steps)
        returns = np.array(self._returns)
        return Timeline(
            name=name,
            about=self.about,
            is_finished=self._is_finished,
            driver=driver,
            workers=tuple(workers),
            arrived_s=arrived_s,
            env_steps=env_steps,
            policy_lag=np.array(self._lags, np.int64),
            episodes=Episodes(returns, np.array(self._lengths, np.int64), so_far[rollouts], arrived_s[rollouts]),
            evaluations=Evaluations(self._seconds(self._evaluated_us), *np.array(self._evaluated).reshape(-1, 2).T),
            failures=self._failures,
            losses=tuple(Loss(what, who, float(self._seconds([us])[0]), why) for what, who, us, why in self._losses),
        )

    def _add(self, event: Mapping[str, Any]) -> None:
        phase, name = event["ph"], event["name"]
        if phase == "X":
            self._add_piece(event, name)
        elif phase == "i" and name == "rollout":
            self._add_rollout(event["ts"], event["args"])
        elif phase == "i" and name == "evaluated":
            mean, env_steps = event["args"]["mean return"], event["args"].get("env_steps")
            self._evaluated_us.append(event["ts"])
            self._evaluated.extend(np.nan if value is None else value for value in (env_steps, mean))
        elif phase == "i" and name in _LOST:
            self._add_loss(_LOST[name], event["tid"] - DRIVER - 1, event["ts"], event["args"])
        elif phase == "M" and name == "parenv":
            self.about = event["args"]

    def _add_piece(self, event: Mapping[str, Any], name: str) -> None:
        track, began = event["tid"], event["ts"]
        self._pieces[track][name].extend((began, began + event["dur"]))
        if track == DRIVER and name == "wait" and self._since_us is None:
            self._since_us = began
        if track != DRIVER and name == "env":
            self._worker_env_steps[track].append(event["args"]["env_steps"])

    def _add_loss(self, what: str, worker: int, at: float, about: Mapping[str, Any]) -> None:
        self._losses.append((what, worker, at, about["reason"]))
        if "ended_by" in about:
            self._failures.add(Failure.of_data(about))
        else:  # A trace of parenv 0.2.0.
            ended_by = WORKER_DIED if what == "worker" else ENVIRONMENT_ERROR
            self._failures.add(Failure(worker, None, ended_by, "", about["reason"]))

    def _add_rollout(self, at: float, about: Mapping[str, Any]) -> None:
        returns = about.get("returns", ())
        self._rollouts.extend([len(self._env_steps)] * len(returns))
        self._returns.extend(np.nan if value is None else value for value in returns)
        self._lengths.extend(about.get("lengths", ()))
        self._failures.add_lost(about.get("lost", ()))
        self._arrived_us.append(at)
        self._env_steps.append(about["env_steps"])
        self._lags.append(about["policy_lag"])

    def _seconds(self, microseconds: Any) -> Any:
        since = self._since_us if self._since_us is not None else float("inf")
        return np.maximum(0.0, 1e-6 * (np.array(microseconds, np.float64) - since))

    def _track(self, track: int) -> Track:
        pieces = {name: self._seconds(times).reshape(-1, 2) for name, times in self._pieces[track].items()}
        name = "driver" if track == DRIVER else f"worker {track - DRIVER - 1}"
        return Track(name, pieces, np.array(self._worker_env_steps[track], np.int64))
