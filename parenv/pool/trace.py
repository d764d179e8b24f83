"""A timeline of a run in the trace format of Chrome, which https://ui.perfetto.dev opens.

Workers say with each rollout when it began and how long its parts took; the driver writes it down as the rollout is
yielded. Acting and stepping alternate at every row of a rollout: here each is one piece, as long as all of it together.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parenv.pool.feeds import Arrival

DRIVER = 0


class Trace:
    """Writes events as they happen; a file that was not closed can be opened all the same.

    Args:
        path: where to; what is there is replaced.
        num_workers: how many workers.
        finishing: what workers do behind the last step of a rollout: ``"commit"``, or ``"postprocess"`` and that.
    """

    def __init__(self, path: str | os.PathLike[str], num_workers: int, finishing: str) -> None:
        self._finishing = finishing
        self._file = Path(path).open("w", buffering=1 << 16, encoding="utf-8")  # noqa: SIM115
        self._file.write("[\n")
        self._learning_since = time.perf_counter()
        for track in range(num_workers + 1):
            name = "driver" if track == DRIVER else f"worker {track - 1}"
            self._write({"name": "thread_name", "ph": "M", "pid": 0, "tid": track, "args": {"name": name}})

    def asked(self) -> float:
        """The driver asks for the next rollout; the time."""
        now = time.perf_counter()
        self._piece(DRIVER, "learn", self._learning_since, now)
        return now

    def yielded(self, asked: float, arrival: Arrival | None) -> None:
        """The driver has waited for a rollout since it asked, and has it or not."""
        self._learning_since = now = time.perf_counter()
        self._piece(DRIVER, "wait", asked, now)
        if arrival is None:
            return
        for worker, commit in zip(arrival.workers, arrival.commits, strict=True):
            self._rollout(1 + worker, commit, arrival)

    def published(self, since: float, version: int) -> None:
        """The driver has published a version."""
        self._piece(DRIVER, "publish", since, time.perf_counter(), {"policy_version": version})

    def close(self) -> None:
        """Finish the file. Idempotent."""
        if not self._file.closed:
            self._file.write("{}]\n")
            self._file.close()

    def _rollout(self, track: int, commit: Any, arrival: Arrival) -> None:
        rollout = arrival.rollout
        began = float(commit["began_s"])
        self._piece(track, "wait", began - float(commit["waiting_s"]), began)
        about = {"policy_version": rollout.policy_version, "policy_lag": rollout.policy_lag}
        for name, field in (("act", "acting_s"), ("env", "environment_s")):
            ended = began + float(commit[field])
            self._piece(track, name, began, ended, about)
            began = ended
        ended = float(commit["ended_s"])
        learning_since = ended - float(commit["learning_s"])
        self._piece(track, self._finishing, began, learning_since)
        if learning_since < ended:
            self._piece(track, "learn", learning_since, ended, about)

    def _piece(self, track: int, name: str, since: float, until: float, args: Mapping[str, Any] | None = None) -> None:
        event = {"name": name, "ph": "X", "pid": 0, "tid": track, "ts": since * 1e6, "dur": (until - since) * 1e6}
        self._write(event if args is None else {**event, "args": args})

    def _write(self, event: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(event) + ",\n")
