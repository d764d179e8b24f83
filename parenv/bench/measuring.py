"""Measure subjects in turn, several times, so that a drift of the machine affects all alike."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LONGEST_ROLLOUT = 128


@dataclass(frozen=True)
class Spread:
    """Summary of repeated measurements.

    Args:
        median: Median of all values.
        low: Smallest value.
        high: Largest value.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one value.

        >>> Spread.of([3.0, 1.0, 2.0])
        Spread(median=2.0, low=1.0, high=3.0)
        """
        return cls(statistics.median(values), min(values), max(values))


class Opened(NamedTuple):
    """A subject that is ready.

    Args:
        measure: ``(seconds) -> figure``. The call takes about this many seconds.
        close: Function that releases the subject's resources.
    """

    measure: Callable[[float], float]
    close: Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """Something to measure.

    Args:
        name: Name for messages.
        open: Function that makes the subject ready.
        weight: Duration of a measurement, as a multiple of that of a vector env.
        forks: Whether ``open`` forks this process. Such subjects open first, before any other has started threads.
    """

    name: str
    open: Callable[[], Opened]
    weight: float = 0.25
    forks: bool = False


@dataclass
class Found:
    """Measurements of one subject.

    Args:
        values: One value per repeat so far.
        failure: Error that ended the measurements, in one line, or ``None``.
    """

    values: list[float] = field(default_factory=list)
    failure: str | None = None

    @property
    def spread(self) -> Spread | None:
        """Summary of the values, or ``None`` if there are no values or the subject failed."""
        return Spread.of(self.values) if self.values and self.failure is None else None


Watch = Callable[[str, int, Sequence[Found]], None]
"""``(next step, number of the repeat, measurements so far)``. Repeats count from 1; 0 is the start of all subjects."""


def interleaved(subjects: Sequence[Subject], repeats: int, slice_s: float, watch: Watch) -> list[Found]:
    """Open all subjects, measure each in turn, repeat, and close all. A subject that fails is not measured again.

    Args:
        subjects: Subjects to measure.
        repeats: Number of measurements of each subject.
        slice_s: Duration of a measurement of weight 1, in seconds.
        watch: Function that is called before each step.

    Returns:
        Measurements in the order of the subjects.
    """
    found = [Found() for _ in subjects]
    opened: dict[int, Opened] = {}
    with contextlib.ExitStack() as stack:
        for i in sorted(range(len(subjects)), key=lambda i: not subjects[i].forks):
            watch(f"starting {subjects[i].name}", 0, found)
            with _recorded(found[i]):
                opened[i] = subjects[i].open()
                stack.callback(_close, opened[i])
                opened[i].measure(0.0)
        for repeat in range(1, repeats + 1):
            for i, subject in enumerate(subjects):
                if found[i].failure is None:
                    watch(subject.name, repeat, found)
                    with _recorded(found[i]):
                        found[i].values.append(opened[i].measure(slice_s * subject.weight))
        watch("closing", repeats, found)
    return found


@contextlib.contextmanager
def _recorded(found: Found) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        found.failure = error_line(error)


def error_line(error: BaseException) -> str:
    r"""Return type and message of an error in one line. An exception group is replaced by its first error.

    >>> error_line(ExceptionGroup("two failed", [ValueError("this\nand more"), ValueError("that")]))
    'ValueError: this'
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _close(opened: Opened) -> None:
    with contextlib.suppress(Exception):
        opened.close()


def seconds_each(work: Callable[[], object], seconds: float) -> float:
    """Repeat a call for some seconds, at least once, and return the mean seconds per call."""
    count, began = 0, time.perf_counter()
    while True:
        work()
        count += 1
        elapsed = time.perf_counter() - began
        if elapsed >= seconds:
            return elapsed / count


def worker_counts(cores: int) -> tuple[int, ...]:
    """Return the powers of two below the number of cores, and this number.

    >>> worker_counts(1), worker_counts(2), worker_counts(12)
    ((1,), (1, 2), (1, 2, 4, 8, 12))
    """
    return (*(1 << i for i in range(cores.bit_length()) if 1 << i < cores), cores)


def grid(num_envs: Sequence[int], num_workers: Sequence[int]) -> list[tuple[int, int]]:
    """Return all pairs in which each worker has a sub-environment, sorted and without duplicates.

    >>> grid((8, 2), (1, 4))
    [(2, 1), (8, 1), (8, 4)]
    """
    pairs = {(envs, workers) for envs in num_envs for workers in num_workers if workers <= envs}
    return sorted(pairs)


def rollout_length(row_s: float, slice_s: float) -> int:
    """Return a rollout length, in env steps per sub-environment, with which a measurement has several rollouts.

    Args:
        row_s: Seconds of acting and of one env step in all sub-environments of a worker.
        slice_s: Duration of a measurement, in seconds.

    >>> rollout_length(0.0004, 0.4), rollout_length(0.004, 0.4), rollout_length(1.0, 0.4)
    (128, 16, 1)
    """
    length = LONGEST_ROLLOUT
    while length > 1 and length * row_s > slice_s / 4:
        length //= 2
    return length
