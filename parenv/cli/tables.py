"""A report as titles, columns and rows of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from parenv.advice import in_seconds, in_steps
from parenv.cli.bench_report import BenchReport, Spread, Throughput
from parenv.cli.systems.compared import REFERENCE

NAMES = 18
"""Characters into which names can be wrapped, none of whose words is longer."""
_EXPENDABLE = {"lowest to highest": 2, "ratio": 1}


class Table(NamedTuple):
    """Text in columns.

    Args:
        title: above it.
        columns: their heads.
        rows: of as many texts each.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def cost_table(report: BenchReport) -> Table:
    """Seconds and bytes of single things."""
    rows = [(name, in_seconds(cost.median), _range(cost, in_seconds)) for name, cost in report.costs_s.items()]
    rows += [(name, "failed", "") for name in report.cost_failures]
    rows += [(name, in_bytes(size), "") for name, size in report.sizes_bytes.items()]
    return Table("one of each", ("", "median", "lowest to highest"), rows)


def throughput_tables(throughput: Sequence[Throughput]) -> list[Table]:
    """A table for each number of sub-environments, with a row for each system and number of workers."""
    return [
        Table(
            f"{n} envs: env steps per second, and the ratio of medians to {REFERENCE}",
            ("", "median", "lowest to highest", "ratio"),
            [(label(one.system, one.num_workers), *_cells(one, throughput)) for one in throughput if one.num_envs == n],
        )
        for n in sorted({one.num_envs for one in throughput})
    ]


def medians_table(throughput: Sequence[Throughput], title: str) -> Table:
    """A row for each system and number of workers, median and ratio for each number of sub-environments."""
    counts = sorted({one.num_envs for one in throughput})
    found = {(label(one.system, one.num_workers), one.num_envs): _cells(one, throughput) for one in throughput}
    rows = [
        (name, *(cell for n in counts for cell in found.get((name, n), ("", "", ""))[::2]))
        for name in dict.fromkeys(name for name, _ in found)
    ]
    return Table(title, ("", *(head for n in counts for head in (f"{n} envs: steps/s", "ratio"))), rows)


def failures(report: BenchReport) -> list[str]:
    """What was not measured, and why."""
    return [f"{name} failed: {failure}" for name, failure in report.cost_failures.items()] + [
        f"{label(one.system, one.num_workers)}, {one.num_envs} envs failed: {one.failure}"
        for one in report.throughput
        if one.failure is not None
    ]


def label(system: str, num_workers: int | None) -> str:
    """A system and its workers in words.

    >>> label("ParallelVectorEnv", 2), label("ParallelVectorEnv", 0), label("AsyncVectorEnv", None)
    ('ParallelVectorEnv, 2 workers', 'ParallelVectorEnv, in process', 'AsyncVectorEnv')
    """
    if num_workers is None or (num_workers == 0 and system != "ParallelVectorEnv"):
        return system
    return f"{system}, " + ("in process" if num_workers == 0 else f"{num_workers} worker{'s' * (num_workers > 1)}")


def fitting(table: Table, width: int, frame: int) -> Table:
    """The same without the columns for which there is no room; ranges go first, then ratios, then what is to the right.

    Args:
        table: whose first column has names, which may be wrapped, and whose others have figures, which may not.
        width: characters that there are.
        frame: characters around a column.
    """
    kept = list(range(len(table.columns)))
    while len(kept) > 2 and NAMES + sum(column_width(table, i) for i in kept[1:]) + frame * len(kept) > width:
        kept.remove(max(kept[1:], key=lambda i: (_EXPENDABLE.get(table.columns[i], 0), i)))
    rows = [[row[i] for i in kept] for row in table.rows]
    return Table(table.title, [table.columns[i] for i in kept], rows)


def column_width(table: Table, column: int) -> int:
    """Of the longest figure; the words of a head may be one below the other."""
    return max(map(len, (*table.columns[column].split(), *(row[column] for row in table.rows))), default=0)


def in_text(table: Table) -> list[str]:
    """Lines with columns of equal width, the first one to the left.

    >>> in_text(Table("title", ("", "head"), [("a", "1"), ("long", "12")]))
    ['title', '      head', 'a        1', 'long    12']
    """
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    lines = [table.title]
    for first, *others in (table.columns, *table.rows):
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join((first.ljust(widths[0]), *numbers)).rstrip())
    return lines


def in_bytes(size: float) -> str:
    """Three digits and a unit.

    >>> in_bytes(22), in_bytes(18700), in_bytes(4e7)
    ('22 B', '18.7 kB', '40 MB')
    """
    for unit, large in (("MB", 1e6), ("kB", 1e3)):
        if size >= large:
            return f"{size / large:.3g} {unit}"
    return f"{size:.0f} B"


def _cells(one: Throughput, throughput: Sequence[Throughput]) -> tuple[str, str, str]:
    """Median, range and ratio, as far as they are known."""
    rate = one.env_steps_per_second
    if rate is None:
        return "" if one.failure is None else "failed", "", ""
    same_size = (other for other in throughput if (other.system, other.num_envs) == (REFERENCE, one.num_envs))
    base = next((other.env_steps_per_second for other in same_size), None)
    return in_steps(rate.median), _range(rate, in_steps), "" if base is None else f"{rate.median / base.median:.2f}"


def _range(spread: Spread, in_words: Callable[[float], str]) -> str:
    return f"{in_words(spread.low)} to {in_words(spread.high)}"
