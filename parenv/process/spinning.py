"""Bounded spinning before a process sleeps.

Waking a sleeping process costs more than the step of a cheap environment. A process that looks at a number in shared
memory for a moment does not have to be woken.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

WAKE_UP_S = 50e-6
"""Approximate cost of a wake-up in seconds, of time and of processor time. Spinning for less costs nothing more."""
MOST_SAVED_S = 0.01
"""Maximum budget for spinning, in seconds."""


@dataclass(frozen=True)
class Spinning:
    """Limits of spinning.

    Args:
        limit_s: Seconds per wait.
        fraction: Share of a core that spinning may use on average, beyond the cost of the wake-ups that it saves.

    >>> Spinning.of("auto", waiting=3, cores=4)
    Spinning(limit_s=0.0001, fraction=0.1)
    >>> Spinning.of("auto", waiting=3, cores=2) is Spinning.of(0, waiting=3, cores=4) is None
    True
    """

    limit_s: float
    fraction: float

    @staticmethod
    def of(spin_us: Any, waiting: int, cores: int) -> Spinning | None:
        """Return the limits for microseconds or ``"auto"``, for so many processes on so many cores."""
        if spin_us == "auto":
            return Spinning(2 * WAKE_UP_S, 0.1) if waiting <= cores else None
        return Spinning(spin_us * 1e-6, float("inf")) if spin_us else None


class Spinner:
    """Looks at a number in shared memory for a bounded time, as long as this saves more than it costs.

    Args:
        spinning: Limits.
        number: One item that changes with a notification.
        spun_ns: Counter of one int64, to which the nanoseconds of spinning are added.
    """

    def __init__(self, spinning: Spinning, number: memoryview, spun_ns: Any) -> None:
        self._limit_s, self._fraction, self._spun_ns = spinning.limit_s, spinning.fraction, spun_ns
        self._number = number
        self._began = time.perf_counter()
        self._saved_s = 0.0
        self._waits_are_long = False

    def heard(self, seen: int) -> bool:
        """Look until the number is another than ``seen``, or until the limit; return whether it is.

        The result is ``False`` at once if the last wait was long or the budget is spent. The caller then sleeps, and
        calls :meth:`woke` afterwards.
        """
        before, began = self._began, time.perf_counter()
        self._began = began
        self._saved_s = min(MOST_SAVED_S, self._saved_s + self._fraction * (began - before))
        if self._waits_are_long or self._saved_s < 0.0:
            return False
        number, until = self._number, began + self._limit_s
        # A look at shared memory is much faster than poll(0), which is a system call.
        while not (heard := number[0] != seen) and time.perf_counter() < until:
            pass
        spun_s = time.perf_counter() - began
        self._spun_ns[0] += int(spun_s * 1e9)
        self._saved_s -= max(0.0, spun_s - WAKE_UP_S)
        return heard

    def woke(self) -> None:
        """Note that the notification came after :meth:`heard`, and how long the wait was."""
        self._waits_are_long = time.perf_counter() - self._began > 2 * self._limit_s
