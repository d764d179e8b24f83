"""Bounded spinning before a process sleeps.

Waking a sleeping process costs more than the step of a cheap environment. A process that polls its eventfd for a moment
does not have to be woken. The other side writes the eventfd either way, so a process does not announce that it will
sleep, and no wake-up is lost between the last poll and the sleep.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass
from typing import Any

WAKE_UP_S = 50e-6
"""What a wake-up takes of the processor and of the time, roughly: as long as this, looking costs no more."""
MOST_SAVED_S = 0.01
"""Seconds of looking that may be saved up for later."""


@dataclass(frozen=True)
class Spinning:
    """How long to look before sleeping.

    Args:
        limit_s: seconds, at each wait.
        fraction: of a core that looking may take on average beyond the wake-ups that it saves.

    >>> Spinning.of("auto", waiting=3, cores=4)
    Spinning(limit_s=0.0001, fraction=0.1)
    >>> Spinning.of("auto", waiting=3, cores=2) is Spinning.of(0, waiting=3, cores=4) is None
    True
    """

    limit_s: float
    fraction: float

    @staticmethod
    def of(spin_us: Any, waiting: int, cores: int) -> Spinning | None:
        """What the user's number of microseconds, or ``"auto"``, means for so many processes on so many cores."""
        if spin_us == "auto":
            return Spinning(2 * WAKE_UP_S, 0.1) if waiting <= cores else None
        return Spinning(spin_us * 1e-6, float("inf")) if spin_us else None


class Spinner:
    """Looks for what is rung, for a bounded time, while that has been worth it.

    Args:
        spinning: for how long.
        descriptor: readable once it has rung.
        spun_ns: one int64: nanoseconds spent with looking are added to it.
    """

    def __init__(self, spinning: Spinning, descriptor: int, spun_ns: Any) -> None:
        self._limit_s, self._fraction, self._spun_ns = spinning.limit_s, spinning.fraction, spun_ns
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        self._look = poll.poll
        self._began = time.perf_counter()
        self._saved_s = 0.0
        self._waits_are_long = False

    def heard(self) -> bool:
        """Look whether it has rung until it has, at most up to the limit; whether it has.

        Where waits have been long, or too much has been spent, ``False`` at once. Whoever then sleeps says so by
        :meth:`woke`.
        """
        before, began = self._began, time.perf_counter()
        self._began = began
        self._saved_s = min(MOST_SAVED_S, self._saved_s + self._fraction * (began - before))
        if self._waits_are_long or self._saved_s < 0.0:
            return False
        look, until = self._look, began + self._limit_s
        while not (heard := bool(look(0))) and time.perf_counter() < until:
            pass
        spun_s = time.perf_counter() - began
        self._spun_ns[0] += int(spun_s * 1e9)
        self._saved_s -= max(0.0, spun_s - WAKE_UP_S)
        return heard

    def woke(self) -> None:
        """It rang only after :meth:`heard` was over: learn from how long that took."""
        self._waits_are_long = time.perf_counter() - self._began > 2 * self._limit_s
