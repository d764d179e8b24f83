"""Read the file that ``pool.trace(path)`` writes, line by line. Its end may be missing."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parenv.bench.timeline import Episodes, Evaluations, Loss, Timeline, Track
from parenv.errors import ConfigurationError
from parenv.records.trace import DRIVER, FORMAT

_LOST = {"lost": "worker", "replaced": "sub-environment"}


def find_traces(path: Path) -> list[Path]:
    """Return a path if it is a trace, or the traces in a directory, sorted by name.

    Raises:
        ConfigurationError: There is no trace.
    """
    found = sorted(filter(Path.is_file, path.glob("*.json"))) if path.is_dir() else [path]
    traces = [one for one in found if _is_trace(one)]
    if not traces:
        there = f"there is no trace in {path}" if path.is_dir() else f"{path} is not a trace of a run"
        raise ConfigurationError(f'{there}: a run writes one after pool.trace("trace.json")')
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
                raise ConfigurationError(f"the trace {path} is damaged: line {torn} is not an event")
            try:
                reader.add_line(line.strip().rstrip(","))
            except (ValueError, LookupError, TypeError):
                torn = number
    if reader.about.get("parenv trace") != FORMAT:
        raise ConfigurationError(f"{path} is not a trace of format {FORMAT}, which this parenv reads")
    return reader.timeline(path.name)


def _is_trace(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = "".join(file.readline(10_000) for _ in range(3))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
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
            self._losses.append((_LOST[name], event["tid"] - DRIVER - 1, event["ts"], event["args"]["reason"]))
        elif phase == "M" and name == "parenv":
            self.about = event["args"]

    def _add_piece(self, event: Mapping[str, Any], name: str) -> None:
        track, began = event["tid"], event["ts"]
        self._pieces[track][name].extend((began, began + event["dur"]))
        if track == DRIVER and name == "wait" and self._since_us is None:
            self._since_us = began
        if track != DRIVER and name == "env":
            self._worker_env_steps[track].append(event["args"]["env_steps"])

    def _add_rollout(self, at: float, about: Mapping[str, Any]) -> None:
        returns = about.get("returns", ())
        self._rollouts.extend([len(self._env_steps)] * len(returns))
        self._returns.extend(np.nan if value is None else value for value in returns)
        self._lengths.extend(about.get("lengths", ()))
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
