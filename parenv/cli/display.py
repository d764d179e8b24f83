"""A benchmark while it runs: a live table in a terminal where ``rich`` is installed, plain lines elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import IO, Any

from parenv.advice import in_steps
from parenv.cli import tables
from parenv.cli.bench import Progress
from parenv.cli.bench_report import BenchReport, Throughput
from parenv.cli.machine import in_one_line, load_warning

ADVISE = "parenv advise also measures your learner and finds the fastest setting for both."
FRAME = 4
"""Characters around a column: a line, a space on each side, and at most one line more."""


class PlainDisplay:
    """One line for each round of measurements, and the tables at the end.

    Args:
        file: where to.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._repeat = -1

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def update(self, progress: Progress) -> None:
        """Say that another round begins."""
        if progress.repeat != self._repeat:
            self._repeat = progress.repeat
            self._say(f"round {self._repeat} of {progress.repeats}" if self._repeat else "starting all systems")

    def show(self, report: BenchReport) -> None:
        """Print a report."""
        self._say(in_one_line(report.machine))
        for table in (tables.cost_table(report), *tables.throughput_tables(report.throughput)):
            self._say("\n" + "\n".join(tables.in_text(table)))
        for line in (*tables.failures(report), *closing_lines(report)):
            self._say(line)

    def _say(self, line: str) -> None:
        print(line, file=self._file, flush=True)


class LiveDisplay:
    """What has been found so far, in a terminal. Needs the extra ``progress``.

    Args:
        file: the terminal.

    Raises:
        ImportError: ``rich`` is not installed.
    """

    def __init__(self, file: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=file, markup=False, emoji=False)
        # On a screen of its own, that is drawn from its corner: what a resized terminal has wrapped is not found again.
        self._live = Live(console=self._console, auto_refresh=False, screen=True)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()

    def update(self, progress: Progress) -> None:
        """Show what has been found so far."""
        round_ = f"round {progress.repeat} of {progress.repeats}: " if progress.repeat else ""
        table = tables.medians_table(progress.throughput, f"{round_}{progress.doing}")
        self._live.update(_rich(table, self._console.width), refresh=True)

    def show(self, report: BenchReport) -> None:
        """Print a report."""
        self._live.stop()
        self._console.print(in_one_line(report.machine), style="dim", highlight=False)
        for table in (tables.cost_table(report), *tables.throughput_tables(report.throughput)):
            self._console.print(_rich(table, self._console.width))
        for line in tables.failures(report):
            self._console.print(line, style="red", highlight=False)
        for line in closing_lines(report):
            self._console.print(line, style="dim", highlight=False)


def make_display(file: IO[str]) -> PlainDisplay | LiveDisplay:
    """The display that suits where the output goes: the live one in a terminal, if ``rich`` is installed."""
    if file.isatty():
        with contextlib.suppress(ImportError):
            return LiveDisplay(file)
    return PlainDisplay(file)


def closing_lines(report: BenchReport) -> list[str]:
    """How the figures came about, whether the machine was busy, and what was fastest."""
    how = (
        f"{report.environment}: {report.repeats} rounds, {report.slice_s:.2g} s for each system in each, "
        f"{report.seconds:.0f} s in all, with starting. Vector envs step with random actions; pools also act, with the "
        "policy."
    )
    return [how, *load_warning(report.machine), *_fastest(report.throughput), ADVISE]


def _fastest(throughput: Sequence[Throughput]) -> Iterator[str]:
    """For the largest number of sub-environments, the fastest vector env and pool of parenv."""
    most = max((one.num_envs for one in throughput), default=0)
    for kind in ("ParallelVectorEnv", "AsyncWorkerPool"):
        found = [one for one in throughput if one.num_envs == most and one.system.startswith(kind)]
        speeds = {
            tables.label(one.system, one.num_workers): one.env_steps_per_second.median
            for one in found
            if one.env_steps_per_second is not None
        }
        if speeds:
            best = max(speeds, key=lambda name: speeds[name])
            yield f"Fastest with {most} envs: {best}, {in_steps(speeds[best])} env steps per second."


def _rich(table: tables.Table, width: int) -> Any:
    from rich import box
    from rich import table as rich_table

    table = tables.fitting(table, width, FRAME)
    made = rich_table.Table(title=table.title, box=box.ROUNDED, title_justify="left", min_width=min(70, width))
    made.add_column(table.columns[0], overflow="fold")
    for i, column in enumerate(table.columns[1:], 1):
        made.add_column(column, justify="right", overflow="fold", min_width=tables.column_width(table, i))
    for row in table.rows:
        made.add_row(*row)
    return made
