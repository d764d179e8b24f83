"""Facts about this machine, and measurements of subjects in turn, so that a drift of the machine affects all alike."""

from __future__ import annotations

import contextlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

from parenv.libraries import installed_version
from parenv.platform import system
from parenv.process.cores import usable_cores

LONGEST_ROLLOUT = 128
LEAST_SHARE = 0.25
"""Share of the time of a benchmark that is for measurements, even if starting and closing take the whole time."""


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
        choice: Setting that the subject has chosen and the reason, in one line, or empty.
    """

    measure: Callable[[float], float]
    close: Callable[[], object]
    choice: str = ""


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
        measured_s: Seconds of all measurements together.
        choice: Setting that the subject has chosen and the reason, in one line, or empty.
    """

    values: list[float] = field(default_factory=list)
    failure: str | None = None
    measured_s: float = 0.0
    choice: str = ""

    @property
    def spread(self) -> Spread | None:
        """Summary of the values, or ``None`` if there are no values or the subject failed."""
        return Spread.of(self.values) if self.values and self.failure is None else None


Watch = Callable[[str, int, Sequence[Found]], None]
"""``(next step, number of the repeat, measurements so far)``. Repeats count from 1; 0 is the start of all subjects."""


def interleaved(subjects: Sequence[Subject], repeats: int, seconds: float, watch: Watch) -> list[Found]:
    """Open all subjects, measure each in turn, repeat, and close all. A subject that fails is not measured again.

    Args:
        subjects: Subjects to measure.
        repeats: Number of measurements of each subject.
        seconds: Approximate duration of this call, in seconds. It takes longer if starting and closing leave less than
            ``LEAST_SHARE`` of it for the measurements.
        watch: Function that is called before each step.

    Returns:
        Measurements in the order of the subjects.
    """
    began = time.monotonic()
    found = [Found() for _ in subjects]
    opened: dict[int, Opened] = {}
    with contextlib.ExitStack() as stack:
        for i in sorted(range(len(subjects)), key=lambda i: not subjects[i].forks):
            watch(f"starting {subjects[i].name}", 0, found)
            with _recorded(found[i]):
                opened[i] = subjects[i].open()
                stack.callback(_close, opened[i])
                found[i].choice = opened[i].choice
                opened[i].measure(0.0)
        started = time.monotonic()
        # Closing usually takes about half as long as starting.
        deadline = max(began + seconds - (started - began) / 2, started + LEAST_SHARE * seconds)
        for repeat in range(1, repeats + 1):
            for i, subject in enumerate(subjects):
                if found[i].failure is None:
                    watch(subject.name, repeat, found)
                    rounds = (repeats - repeat + (other >= i) for other in range(len(subjects)))
                    left = sum(
                        n * other.weight
                        for n, other, one in zip(rounds, subjects, found, strict=True)
                        if one.failure is None
                    )
                    # A measurement may take longer than its share, which shortens the next ones.
                    _measure(found[i], opened[i], (deadline - time.monotonic()) * subject.weight / left)
        watch("closing", repeats, found)
    return found


def _measure(found: Found, opened: Opened, seconds: float) -> None:
    began = time.monotonic()
    with _recorded(found):
        found.values.append(opened.measure(max(0.0, seconds)))
    found.measured_s += time.monotonic() - began


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


PACKAGES = ("parenv", "gymnasium", "numpy", "torch", "stable_baselines3")
BUSY = 0.3
"""Load per core from which figures are not reliable."""


def machine() -> dict[str, Any]:
    """Return facts about this machine and versions of installed packages, as plain data.

    Returns:
        ``cpu``, ``cores`` (usable by this process), ``memory_gb``, ``load_average`` (over the last minute),
        ``system``, ``python``, ``packages`` (name to version) and ``date``.
    """
    return {
        "cpu": _cpu(),
        "cores": usable_cores(),
        "memory_gb": round(system.memory_bytes() / 1e9, 1),
        "load_average": round(system.load_average(), 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := installed_version(name)) is not None},
        "date": date.today().isoformat(),
    }


def in_one_line(facts: Mapping[str, Any]) -> str:
    """Return the facts that matter most to figures.

    >>> facts = {"cpu": "Some CPU", "cores": 2, "memory_gb": 8.0, "load_average": 0.5, "python": "3.11.7"}
    >>> in_one_line({**facts, "packages": {"torch": "2.13.0"}})
    'Some CPU, 2 cores, 8.0 GB, Python 3.11.7, torch 2.13.0, load average before 0.5'
    """
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, Python {facts['python']}, {packages}, "
        f"load average before {facts['load_average']}"
    )


def load_warning(facts: Mapping[str, Any]) -> list[str]:
    """Return a line that warns of a busy machine, or nothing if the machine was idle.

    >>> load_warning({"cores": 2, "load_average": 0.5})
    []
    """
    load, cores = facts["load_average"], facts["cores"]
    if load <= BUSY * cores:
        return []
    return [f"Warning: the load average before was {load:g} on {cores} cores. Repeat this on an idle machine."]


def _cpu() -> str:
    return system.processor_name() or platform.processor() or platform.machine()
