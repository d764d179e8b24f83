"""Results of a benchmark: tables on a display, and a bar chart in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from parenv.advice import in_seconds, in_steps
from parenv.bench.benchmark import BenchReport, Progress, Throughput
from parenv.bench.display import Display, Table
from parenv.bench.measuring import Spread, in_one_line, load_warning
from parenv.bench.output_files import check_plotting, writing
from parenv.bench.subjects import REFERENCE

ADVISE = "In a training loop, pool.advice() also measures your learner, and names the setting to change."
ACTING = "AsyncWorkerPool"
"""Beginning of the names of systems that run the policy too."""


def cost_table(report: BenchReport) -> Table:
    """Return the table of single costs and sizes."""
    rows = [(name, in_seconds(cost.median), _range(cost, in_seconds)) for name, cost in report.costs_s.items()]
    rows += [(name, "failed", "") for name in report.cost_failures]
    rows += [(name, in_bytes(size), "") for name, size in report.sizes_bytes.items()]
    return Table("one of each", ("", "median", "lowest to highest"), rows)


def throughput_tables(throughput: Sequence[Throughput]) -> list[Table]:
    """Return a table for each number of sub-environments, with a row for each system and number of workers."""
    return [
        Table(
            f"{n} envs: env steps per second, and the ratio of medians to {REFERENCE}",
            ("", "median", "lowest to highest", "ratio"),
            [(label(one.system, one.num_workers), *_cells(one, throughput)) for one in throughput if one.num_envs == n],
        )
        for n in sorted({one.num_envs for one in throughput})
    ]


def medians_table(throughput: Sequence[Throughput], title: str) -> Table:
    """Return one table with a row for each system, and median and ratio for each number of sub-environments."""
    counts = sorted({one.num_envs for one in throughput})
    found = {(label(one.system, one.num_workers), one.num_envs): _cells(one, throughput) for one in throughput}
    rows = [
        (name, *(cell for n in counts for cell in found.get((name, n), ("", "", ""))[::2]))
        for name in dict.fromkeys(name for name, _ in found)
    ]
    return Table(title, ("", *(head for n in counts for head in (f"{n} envs: steps/s", "ratio"))), rows)


def failures(report: BenchReport) -> list[str]:
    """Return a line for each subject that failed."""
    return [f"{name} failed: {failure}" for name, failure in report.cost_failures.items()] + [
        f"{label(one.system, one.num_workers)}, {one.num_envs} envs failed: {one.failure}"
        for one in report.throughput
        if one.failure is not None
    ]


def label(system: str, num_workers: int | None) -> str:
    """Return the name of a system with its number of workers.

    >>> label("ParallelVectorEnv", 2), label("ParallelVectorEnv", 0), label("AsyncVectorEnv", None)
    ('ParallelVectorEnv, 2 workers', 'ParallelVectorEnv, in process', 'AsyncVectorEnv')
    """
    if num_workers is None or (num_workers == 0 and system != "ParallelVectorEnv"):
        return system
    return f"{system}, " + ("in process" if num_workers == 0 else f"{num_workers} worker{'s' * (num_workers > 1)}")


def in_bytes(size: float) -> str:
    """Return a size in three digits, with its unit.

    >>> in_bytes(22), in_bytes(18700), in_bytes(4e7)
    ('22 B', '18.7 kB', '40 MB')
    """
    for unit, large in (("MB", 1e6), ("kB", 1e3)):
        if size >= large:
            return f"{size / large:.3g} {unit}"
    return f"{size:.0f} B"


def _cells(one: Throughput, throughput: Sequence[Throughput]) -> tuple[str, str, str]:
    """Return median, range and ratio. Unknown figures are empty."""
    rate = one.env_steps_per_second
    if rate is None:
        return "" if one.failure is None else "failed", "", ""
    same_size = (other for other in throughput if (other.system, other.num_envs) == (REFERENCE, one.num_envs))
    base = next((other.env_steps_per_second for other in same_size), None)
    return in_steps(rate.median), _range(rate, in_steps), "" if base is None else f"{rate.median / base.median:.2f}"


def _range(spread: Spread, in_words: Callable[[float], str]) -> str:
    return f"{in_words(spread.low)} to {in_words(spread.high)}"


class BenchDisplay(Display):
    """Display of the measurements so far, and then of the report.

    Args:
        file: File to write to.
    """

    def __init__(self, file: IO[str]) -> None:
        # A terminal that is resized wraps lines, so that rich cannot find the old table. A screen of its own has a
        # fixed corner to draw from.
        super().__init__(file, screen=True)
        self._line = ""

    def update(self, progress: Progress) -> None:
        """Show the measurements so far, or write a line if a new repeat begins."""
        line = f"round {progress.repeat} of {progress.repeats}" if progress.repeat else "starting all systems"
        table = medians_table(progress.throughput, f"{line}: {progress.doing}" if progress.repeat else progress.doing)
        if self.is_live or line != self._line:
            self.show(table, line)
        self._line = line

    def report(self, report: BenchReport) -> None:
        """Write a report."""
        self.stop()
        self.write(in_one_line(report.machine), "dim")
        for table in (cost_table(report), *throughput_tables(report.throughput)):
            self.write(table)
        for line in failures(report):
            self.write(line, "red")
        for line in closing_lines(report):
            self.write(line, "dim")


def closing_lines(report: BenchReport) -> list[str]:
    """Return the last lines: conditions, a warning if the machine was busy, chosen settings, fastest systems."""
    how = (
        f"{report.environment}: {report.repeats} rounds of {report.slice_s:.2g} s for each vector env, "
        f"{report.seconds:.0f} s in all, starting and closing included. Vector envs step with random actions; pools "
        "also run the policy."
    )
    chosen = [f"{one.system}, {one.num_envs} envs: {one.choice}" for one in report.throughput if one.choice]
    return [how, *load_warning(report.machine), *chosen, *_fastest(report.throughput), ADVISE]


def _fastest(throughput: Sequence[Throughput]) -> Iterator[str]:
    """Yield the fastest of all systems for each number of sub-environments, and the fastest one with a policy."""
    for n in sorted({one.num_envs for one in throughput}):
        rates = {
            label(one.system, one.num_workers): one.env_steps_per_second.median
            for one in throughput
            if one.num_envs == n and one.env_steps_per_second is not None
        }
        acting = {name: rate for name, rate in rates.items() if name.startswith(ACTING)}
        best = max(rates, key=rates.__getitem__, default=None)
        if best is not None:
            yield f"Fastest with {n} envs: {best}, {in_steps(rates[best])} env steps per second."
        if acting and best not in acting:
            best = max(acting, key=acting.__getitem__)
            also = f"Fastest with {n} envs that also runs the policy"
            yield f"{also}: {best}, {in_steps(acting[best])} env steps per second."


COLOURS = {
    "SyncVectorEnv": "#e6850d",
    "AsyncVectorEnv": "#fdbe85",
    "ParallelVectorEnv, default": "#08519c",
    "ParallelVectorEnv": "#2171b5",
    "AsyncWorkerPool, sync": "#238b45",
    "AsyncWorkerPool, async": "#74c476",
}
OTHERS = "#a8a8a8"


def plot(report: BenchReport, path: Path) -> None:
    """Draw env steps per second by system, with one panel for each number of sub-environments.

    Args:
        report: Report to draw. Bars are medians, and lines go from the lowest to the highest value.
        path: Picture file. The suffix chooses the format.

    Raises:
        ConfigurationError: ``matplotlib`` is not installed, or does not have this format.
    """
    check_plotting(path)
    from matplotlib.figure import Figure

    counts = sorted({one.num_envs for one in report.throughput})
    rows = list(dict.fromkeys(label(one.system, one.num_workers) for one in report.throughput))
    figure = Figure(figsize=(2.4 + 4.4 * len(counts), 1.7 + 0.36 * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(counts), sharey=True, squeeze=False)[0]
    for panel, n in zip(panels, counts, strict=True):
        _draw(panel, rows, [one for one in report.throughput if one.num_envs == n])
        panel.set_title(f"{n} environments", fontsize=11)
    panels[0].set_yticks(range(len(rows)), rows)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    figure.suptitle(f"{report.environment}: env steps per second", fontsize=13, fontweight="bold")
    figure.supxlabel(
        f"median and range of {report.repeats}; {report.machine['cpu']}, {report.machine['cores']} cores; "
        "pools also act",
        fontsize=8,
        color="#555555",
    )
    with writing(path):
        figure.savefig(path, dpi=130)


def _draw(panel: Any, rows: Sequence[str], throughput: Sequence[Throughput]) -> None:
    highest = max((one.env_steps_per_second.high for one in throughput if one.env_steps_per_second), default=1.0)
    for one in throughput:
        place, rate = rows.index(label(one.system, one.num_workers)), one.env_steps_per_second
        if rate is None:
            panel.text(0, place, " failed", va="center", fontsize=8, color="#b00000")
            continue
        spread = [[rate.median - rate.low], [rate.high - rate.median]]
        style = {"ecolor": "#333333", "capsize": 2, "error_kw": {"elinewidth": 0.9}}
        panel.barh(place, rate.median, 0.72, color=COLOURS.get(one.system, OTHERS), xerr=spread, **style)
        panel.text(rate.high + 0.02 * highest, place, in_steps(rate.median), va="center", fontsize=8)
    panel.set_xlim(0, 1.2 * highest)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    panel.tick_params(axis="y", length=0)
    panel.locator_params(axis="x", nbins=6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="x", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
