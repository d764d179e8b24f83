"""Plots of the comparisons: a panel for each case and a bar for each system, with parenv in colour.

A system without a result has the reason in place of its bar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
Panels = Mapping[str, Mapping[str, float | str]]
OURS, THEIRS, OTHER_ENVIRONMENTS = "#08519c", "#b3b3b3", "#e3e3e3"
BACKED: dict[str, Any] = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6}}


def read(name: str) -> Any:
    """Return the results in ``results/NAME.json``."""
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]


def column(found: Mapping[str, Any], key: str) -> dict[str, float | str]:
    """Return one value of each system except the upper bound, or the reason of its failure."""
    return {name: one.get("failed") or one[key] for name, one in found.items() if name != "limit"}


def shares(results: Mapping[str, Any]) -> dict[str, dict[str, float | str]]:
    """Return a panel for each case: the share of the upper bound that each system reaches."""
    return {
        f"{case}: upper bound {found['limit']['median']:,.0f}/s": column(found, "ratio_to_limit")
        for case, found in results.items()
    }


def draw(name: str, title: str, panels: Panels, *, columns: int, line: float | None = None) -> None:
    """Draw ``results/NAME.png``.

    Args:
        name: Name of the file.
        title: Title of the plot, with whether more or less is better.
        panels: For each title of a panel, the lengths of its bars by name. A text replaces a bar.
        columns: Number of panels side by side.
        line: Length at which a dotted line marks the upper bound. Bars beyond 1.4 times this length are cut.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(bar for bars in panels.values() for bar in bars))
    rows = -(-len(panels) // columns)
    size = (3.4 + 5.6 * columns**0.55, 0.8 + rows * (0.6 + 0.23 * len(names)))
    figure, axes = plt.subplots(rows, columns, figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (heading, bars) in zip(axes.flat, panels.items(), strict=False):
        axis.set_title(heading, fontsize=10)
        _panel(axis, names, bars, line)
    figure.suptitle(title, fontsize=12)
    figure.savefig(RESULTS / f"{name}.png", dpi=110)


def _panel(axis: Any, names: list[str], bars: Mapping[str, float | str], line: float | None) -> None:
    longest = max([value for value in bars.values() if not isinstance(value, str)], default=1.0)
    end = min(max(longest, line), 1.4 * line) if line else longest
    for row, name in enumerate(names):
        _bar(axis, row, name, bars.get(name, "not measured"), end)
    if line:
        axis.axvline(line, color="black", linewidth=0.9, linestyle=":")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    for label in axis.get_yticklabels():
        label.set(**({"color": OURS, "fontweight": "bold"} if label.get_text().startswith("parenv") else {}))
    axis.set(xlim=(0, 1.2 * end), ylim=(len(names) - 0.4, -0.6))
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)


def _bar(axis: Any, row: int, name: str, value: float | str, end: float) -> None:
    if isinstance(value, str):
        axis.text(0.01 * end, row, _short(value), va="center", fontsize=7, style="italic", **BACKED)
        return
    length, text = min(value, end), _written(value) + (", cut" if value > end else "")
    axis.barh(row, length, 0.78, **_style(name))
    axis.text(length + 0.015 * end, row, text, va="center", fontsize=8, **BACKED)


def _style(name: str) -> dict[str, str]:
    if name.startswith("parenv"):
        return {"color": OURS}
    if "own C++ envs" in name:
        return {"color": OTHER_ENVIRONMENTS, "hatch": "////", "edgecolor": THEIRS, "linewidth": "0"}
    return {"color": THEIRS}


def _written(value: float) -> str:
    decimals = 3 if value < 0.1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"


def _short(reason: str) -> str:
    return reason if len(reason) < 60 else f"{reason[:57]} ..."


def draw_growth(name: str, panels: Mapping[str, Mapping[int, Mapping[str, float]]]) -> None:
    """Draw ``results/NAME.png``: env steps per second over workers, a line for each system.

    Args:
        name: Name of the file.
        panels: For each title of a panel, the rates of all systems by the number of workers.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # Three panels in a row cannot be read on a phone, so the panels are stacked and their legends are beside them.
    figure, axes = plt.subplots(len(panels), 1, figsize=(8.4, 3.4 * len(panels)), squeeze=False, layout="constrained")
    for axis, (title, found) in zip(axes.flat, panels.items(), strict=True):
        if not found:
            axis.set_visible(False)
            continue
        for system in dict.fromkeys(system for one in found.values() for system in one):
            workers = [count for count, one in found.items() if system in one]
            axis.plot(
                workers, [found[count][system] for count in workers], label=_label(system), marker="o", **_line(system)
            )
        counts = list(found)
        axis.set(title=title, xlabel="workers", ylabel="env steps/s", ylim=(0, None))
        axis.yaxis.set_major_formatter(lambda rate, _: f"{rate / 1000:,.0f}k")
        axis.set_xticks(counts, counts)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=9, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.savefig(RESULTS / f"{name}.png", dpi=110)


def _label(name: str) -> str:
    # This is not an upper bound for systems whose main process steps too: they have one more busy process.
    return "one independent process per worker" if name == "limit" else name.replace("nobody spins", "no spinning")


def _line(name: str) -> dict[str, Any]:
    if name == "limit":
        return {"color": "black", "linestyle": ":"}
    if not name.startswith("parenv"):
        return {"color": THEIRS, "linestyle": "--" if "SB3" in name else "-"}
    shades = {"caller": "#08306b", "1000": "#9e9ac8", "spins": "#9ecae1", "halves": "#41ab5d", "sync": "#6baed6"}
    return {"color": next((shade for word, shade in shades.items() if word in name and "async" not in name), OURS)}
