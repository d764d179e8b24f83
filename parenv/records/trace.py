"""Trace of a run in the format of Chrome, for ``parenv report`` and https://ui.perfetto.dev.

Each rollout has the time of its beginning and the durations of its parts. The main process writes them when the rollout
is yielded, with env steps, lag, ended episodes, and lost and replaced workers. Acting and stepping alternate at every
row of a rollout. The trace has one piece of each, as long as all of its parts together.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TextIO

from parenv.crew.events import Back, Lost
from parenv.crew.failures import failure_of_worker
from parenv.errors import ConfigurationError, during
from parenv.pool.arrival import Arrival
from parenv.pool.events import Asked, Delivered, Evaluated, Observer, PoolEvent, Published
from parenv.process.cores import own_file

FORMAT = 1
PROCESS = DRIVER = 1
"""Numbers begin with 1, because Perfetto takes process and thread 0 for the idle thread of the kernel."""
TICKS = 8
"""Parts of a microsecond that times are rounded to. Floating point adds them up exactly."""
FLUSH_S = 1.0

_log = logging.getLogger("parenv")


class TraceWriter(Observer):
    """Writes events as they happen, one per line. A file that was not closed can still be read.

    Args:
        path: Path of the file, which is replaced if it exists. Missing folders are made.
        num_workers: Number of workers.
        about: Description of the pool, and ``env_steps`` before the first rollout.
        finishing: Name of the last part of a rollout: ``"commit"``, or ``"postprocess"`` if it includes that.

    Raises:
        ConfigurationError: The file cannot be written.
    """

    def __init__(
        self, path: str | os.PathLike[str], num_workers: int, about: Mapping[str, Any], finishing: str
    ) -> None:
        self._finishing = finishing
        self._env_steps = int(about["env_steps"])
        self._lost: dict[int, float] = {}
        self._back: dict[int, float] = {}
        self._ended: dict[int, int] = {}
        self._file = _opened(Path(path))
        # A buffer of the file would be written a second time by a child process that the user forks.
        self._unwritten = [f'[\n{{"name": "process_name", "ph": "M", "pid": {PROCESS}, "args": {{"name": "parenv"}}}}']
        date = datetime.now().isoformat(" ", "seconds")
        self._learning_since = self._waiting_since = self._flushed = now = time.perf_counter()
        self._event("parenv", "M", DRIVER, now, args={"parenv trace": FORMAT, "date": date, **about})
        for track in range(DRIVER, DRIVER + num_workers + 1):
            name = "driver" if track == DRIVER else f"worker {track - DRIVER - 1}"
            self._event("thread_name", "M", track, now, args={"name": name})
            self._event("thread_sort_index", "M", track, now, args={"sort_index": track})
        self._flush()

    def hear(self, event: PoolEvent) -> None:
        """Write an event."""
        now = time.perf_counter()
        match event:
            case Asked():
                self._waiting_since = now
                self._piece(DRIVER, "learn", self._learning_since, now)
            case Delivered(arrival):
                self._delivered(now, arrival)
            case Published(version, since):
                self._piece(DRIVER, "publish", since, now, f'{{"policy_version": {version}}}')
            case Evaluated(result, since, beside):
                about: dict[str, Any] = {"policy_version": result.policy_version}
                if not beside:  # An evaluation beside the training takes no time of the main process.
                    self._piece(DRIVER, "evaluate", since, now, json.dumps(about))
                about |= {"env_steps": result.env_steps, "mean return": _number(result.mean_return)}
                self._event("evaluated", "i", DRIVER, now, s="t", args=about)
            case Lost(worker, reason):
                self._lost.setdefault(worker, now)
                failure = failure_of_worker(worker, reason).shortened()
                about = {"reason": str(reason), **failure._asdict()}
                self._event("lost", "i", _track(worker), now, s="t", args=about)
            case Back(worker, generation):
                self._back[_track(worker)] = now
                restarted = f'{{"generation": {generation}}}'
                self._piece(_track(worker), "restart", self._lost.pop(worker, now), now, restarted)

    def close(self) -> None:
        """Finish the file. Idempotent."""
        if not self._file.closed:
            self._unwritten.append("\n]\n")
            self._flush()
            self._file.close()

    def _delivered(self, now: float, arrival: Arrival | None) -> None:
        self._learning_since = now
        self._piece(DRIVER, "wait", self._waiting_since, now)
        if arrival is not None:
            self._arrived(now, arrival)
        # The file of a run with long rollouts may be read before the run ends.
        if now - self._flushed > FLUSH_S:
            self._flushed = now
            self._flush()

    def _arrived(self, now: float, arrival: Arrival) -> None:
        episodes, lost = arrival.rollout.episodes.finished, arrival.rollout.episodes.lost
        env_steps = sum(arrival.samples)
        about: dict[str, Any] = {"env_steps": env_steps, "policy_lag": arrival.rollout.policy_lag}
        self._env_steps += env_steps
        self._event("env steps", "C", DRIVER, now, args={"env steps": self._env_steps})
        if len(episodes):
            returns = episodes.returns.tolist()
            about |= {"returns": list(map(_number, returns)), "lengths": episodes.lengths.tolist()}
            if math.isfinite(mean := sum(returns) / len(returns)):
                self._event("return", "C", DRIVER, now, args={"return": mean})
        if len(lost):
            about["lost"] = list(zip(lost.env_ids.tolist(), lost.ended_by.tolist(), strict=True))
        self._event("rollout", "i", DRIVER, now, s="t", args=about)
        names, version = arrival.commits.dtype.names, arrival.rollout.policy_version
        for i, values in enumerate(arrival.commits.tolist()):
            track, commit = _track(arrival.workers[i]), dict(zip(names, values, strict=True))
            self._rollout(track, commit, json.dumps({"env_steps": arrival.samples[i], "policy_version": version}))
        ended_s = arrival.commits["ended_s"]
        for i, failure in arrival.failures():
            reason = f"env_id {failure.env_id} raised {during(failure.doing)} and was replaced: {failure.error}"
            about = {"reason": reason, **failure.shortened()._asdict()}
            self._event("replaced", "i", _track(failure.worker), float(ended_s[i]), s="t", args=about)

    def _rollout(self, track: int, commit: Mapping[str, float], about: str) -> None:
        began, ended = commit["began_s"], commit["ended_s"]
        acted = began + commit["acting_s"]
        stepped, learning_since = acted + commit["environment_s"], ended - commit["learning_s"]
        # A new process waits from a time on at which the main process does not know it yet.
        back = self._back.get(track, 0.0)
        floor = max(self._ended.get(track, 0), _ticks(back) if back <= began else 0)
        times = (began - commit["waiting_s"], began, acted, stepped, learning_since, ended)
        ticks = [max(floor, one) for one in accumulate(map(_ticks, times), max)]
        self._ended[track] = ticks[-1]
        for name, (since, until) in zip(("wait", "act", "env", self._finishing, "learn"), pairwise(ticks), strict=True):
            if name != "learn" or since < until:
                self._ticked(track, name, since, until, "{}" if name in ("wait", self._finishing) else about)

    def _piece(self, track: int, name: str, since: float, until: float, args: str = "{}") -> None:
        self._ticked(track, name, _ticks(since), _ticks(until), args)

    def _ticked(self, track: int, name: str, since: int, until: int, args: str) -> None:
        # Each rollout has several of these lines, and json.dumps would take four times as long.
        times = f'"ts": {since / TICKS:.3f}, "dur": {(until - since) / TICKS:.3f}'
        place = f'"pid": {PROCESS}, "tid": {track}'
        self._unwritten.append(f',\n{{"name": "{name}", "ph": "X", {place}, {times}, "args": {args}}}')

    def _event(self, name: str, phase: str, track: int, at: float, **more: Any) -> None:
        event = {"name": name, "ph": phase, "pid": PROCESS, "tid": track, "ts": _ticks(at) / TICKS, **more}
        self._unwritten.append(",\n" + json.dumps(event))

    def _flush(self) -> None:
        text = "".join(self._unwritten)
        self._unwritten.clear()
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            # A full disk ends the trace, but not the training.
            _log.warning("the trace %s ends here, because it cannot be written: %s", self._file.name, str(error))
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def trace_to(
    path: str | os.PathLike[str], num_workers: int, about: Mapping[str, Any], postprocesses: bool
) -> TraceWriter:
    """Return the writer of a timeline. Each learner writes to a file of its own.

    Args:
        path: Path of the file of the first learner.
        num_workers: See :class:`TraceWriter`.
        about: See :class:`TraceWriter`.
        postprocesses: Whether rollouts are postprocessed.
    """
    return TraceWriter(own_file(path), num_workers, about, "postprocess" if postprocesses else "commit")


def _opened(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", buffering=1 << 16, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the trace {path} cannot be written: {error.strerror}. Name another file.") from error


def _track(worker: int) -> int:
    return DRIVER + 1 + worker


def _ticks(seconds: float) -> int:
    return round(1e6 * TICKS * seconds)


def _number(value: float) -> float | None:
    """Return a number that JSON can have, or ``None``."""
    return value if math.isfinite(value) else None
