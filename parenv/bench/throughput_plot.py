"""Bar chart of the throughput in a benchmark's report. Needs the extra ``bench``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parenv.advice import in_steps
from parenv.bench.benchmark import BenchReport, Throughput
from parenv.bench.display import label
from parenv.bench.output_files import check_plotting, writing

COLOURS = {
    "SyncVectorEnv": "#e6850d",
    "AsyncVectorEnv": "#fdbe85",
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
