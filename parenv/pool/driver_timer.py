"""Timer of the parts that the main process spends its time on."""

from __future__ import annotations

import math
import time
from typing import Literal

Part = Literal["learning", "publishing", "waiting", "calling"]


class DriverTimer:
    """Adds up wall-clock and processor seconds by part.

    Between two rollouts the main process learns, unless it publishes or calls. The time before the first rollout
    belongs to no part.

    Args:
        seconds: Wall-clock seconds by part, added to.
        processor_seconds: Processor seconds of all threads of this process by part, added to.
    """

    def __init__(self, seconds: dict[str, float], processor_seconds: dict[str, float]) -> None:
        self._seconds, self._processor_seconds = seconds, processor_seconds
        self._part: Part | None = None
        self._since = (0.0, 0.0)
        self._began = time.monotonic()
        self._first_asked = math.nan
        self._collected_before_s = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the pool was made, and those of the run that this one resumes."""
        return time.monotonic() - self._began

    @property
    def collecting_s(self) -> float:
        """Seconds since the first rollout was requested, and those of the run before. NaN before the first request."""
        return time.monotonic() - self._first_asked

    def resume(self, seconds: float, collecting_s: float) -> None:
        """Continue from the seconds of another run."""
        self._began -= seconds
        self._collected_before_s = collecting_s

    def asked(self) -> None:
        """Note that a rollout is requested."""
        if math.isnan(self._first_asked):
            self._first_asked = time.monotonic() - self._collected_before_s

    def during(self, part: Part) -> During:
        """Return a context of this part. After waiting for a rollout comes learning from it."""
        return During(self, part, "learning" if part == "waiting" else self._part)

    def begin(self, part: Part | None) -> None:
        """End the present part and begin this one."""
        now = (time.perf_counter(), time.process_time())
        if self._part is not None:
            self._seconds[self._part] = self._seconds.get(self._part, 0.0) + now[0] - self._since[0]
            before = self._processor_seconds.get(self._part, 0.0)
            self._processor_seconds[self._part] = before + now[1] - self._since[1]
        self._part, self._since = part, now


class During:
    """Part of the time of the main process, as a context manager."""

    def __init__(self, timer: DriverTimer, part: Part, after: Part | None) -> None:
        self._timer, self._part, self._after = timer, part, after

    def __enter__(self) -> None:
        self._timer.begin(self._part)

    def __exit__(self, *raised: object) -> None:
        self._timer.begin(self._after)
