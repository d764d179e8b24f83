"""Measuring many subjects in turn, several times, so that a drift of the machine meets all alike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from parenv.cli.bench_report import Spread
from parenv.cli.subjects import Opened, Subject


@dataclass
class Found:
    """What measuring one subject gave.

    Args:
        values: one for each repeat so far.
        failure: why there are no more, or ``None``.
    """

    values: list[float] = field(default_factory=list)
    failure: str | None = None

    @property
    def spread(self) -> Spread | None:
        """The values in short; ``None`` where there is none, or something failed."""
        return Spread.of(self.values) if self.values and self.failure is None else None


Watch = Callable[[str, int, Sequence[Found]], None]
"""``(what comes next, the repeat from 1 or 0 for starting, what has been found so far)``."""


def interleaved(subjects: Sequence[Subject], repeats: int, slice_s: float, watch: Watch) -> list[Found]:
    """Open all, measure each in turn, ``repeats`` times, close all. What fails is not measured again.

    Args:
        subjects: what to measure.
        repeats: measurements of each.
        slice_s: seconds for a measurement of weight 1.
        watch: is told before each step.

    Returns:
        What was found, in the order of the subjects.
    """
    found = [Found() for _ in subjects]
    opened: dict[int, Opened] = {}
    with contextlib.ExitStack() as stack:
        for i in sorted(range(len(subjects)), key=lambda i: not subjects[i].forks):
            watch(f"starting {subjects[i].name}", 0, found)
            with _excused(found[i]):
                opened[i] = subjects[i].open()
                stack.callback(_close, opened[i])
                opened[i].measure(0.0)
        for repeat in range(1, repeats + 1):
            for i, subject in enumerate(subjects):
                if found[i].failure is None:
                    watch(subject.name, repeat, found)
                    with _excused(found[i]):
                        found[i].values.append(opened[i].measure(slice_s * subject.weight))
        watch("closing", repeats, found)
    return found


@contextlib.contextmanager
def _excused(found: Found) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        found.failure = in_one_line(error)


def in_one_line(error: BaseException) -> str:
    r"""Type and message of an error, or of the first one of a group.

    >>> in_one_line(ExceptionGroup("two failed", [ValueError("this\nand more"), ValueError("that")]))
    'ValueError: this'
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _close(opened: Opened) -> None:
    with contextlib.suppress(Exception):
        opened.close()
