"""Picture of the README: throughput with 1 to 15 workers, and speed without options on two cores, free and busy.

The values are the results of ``peers/cores.py`` and ``choice.py``. The picture is 830 points wide, as the README is.

python benchmarks/tables/overview.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

from forms import read
from lib.common import save_picture
from parts import REFERENCE, SPEEDS, ratios

OURS, THEIRS, EDGE = "#1f6fb4", "#5c636b", "#8a9099"
WORKERS = (1, 2, 4, 8, 15)
LINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "limit": ("upper bound: independent processes", "bottom", {"color": EDGE, "linestyle": ":"}),
    "parenv, step": ("parenv", "bottom", {"color": OURS, "linewidth": 3}),
    "Gymnasium AsyncVectorEnv": ("AsyncVectorEnv", "bottom", {"color": THEIRS}),
    "SB3 SubprocVecEnv": ("SubprocVecEnv", "top", {"color": THEIRS, "linestyle": "--"}),
}
BARS = {"parenv": OURS, "AsyncVectorEnv": "#aab0b6", "SubprocVecEnv": "#d3d6da"}


def draw() -> Any:
    """Return the figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 11, "axes.titlesize": 12.5, "axes.titleweight": "bold"})
    plt.rcParams["axes.titlelocation"] = "left"
    # Two panels beside each other cannot be read on a phone.
    figure, (above, below) = plt.subplots(2, 1, figsize=(8.3, 6.9), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
    _lines(above)
    _bars(below)
    return figure


def _lines(axis: Any) -> None:
    found = {workers: read("peers_cores")[f"halfcheetah-{workers}"] for workers in WORKERS}
    for name, (label, side, style) in LINES.items():
        rates = [found[workers][name]["median"] / 1000 for workers in WORKERS]
        axis.plot(WORKERS, rates, **style)
        axis.annotate(
            f"{label}  {rates[-1]:,.0f}k", (WORKERS[-1], rates[-1]), xytext=(-8, 4 if side == "bottom" else -5),
            textcoords="offset points", ha="right", va=side, color=style["color"],
            fontweight="bold" if name.startswith("parenv") else "normal",
        )  # fmt: skip
    axis.set_title("120 HalfCheetahs on 16 cores: env steps/s by number of workers")
    axis.set(xlim=(1, 15.2), ylim=(0, 250), xticks=WORKERS)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}k")


def _bars(axis: Any) -> None:
    free, busy = ratios("free cores"), ratios("a busy loop per core")
    for place, (system, colour) in enumerate(BARS.items()):
        lefts = [number + 0.28 * (place - 1) for number in range(len(SPEEDS))]
        heights = [free[case][system] for case in SPEEDS]
        axis.bar(lefts, heights, 0.27, color=colour, label=system)
        for left, height in zip(lefts, heights, strict=True):
            # Above the mark of the busy machine, which may be at the end of the bar, and over the dotted line.
            axis.text(
                left, height * 1.25, f"{height:.1f}" if height >= 0.95 else f"{height:.2f}", ha="center", fontsize=10,
                color=OURS if system == "parenv" else THEIRS, bbox={"color": "white", "pad": 0.5},
            )  # fmt: skip
        if system == "parenv":
            marks = [busy[case][system] for case in SPEEDS]
            style = {"marker": "D", "edgecolors": "black", "zorder": 3}
            axis.scatter(lefts, marks, 28, "white", label="parenv, busy cores", **style)
    axis.axhline(1.0, color=EDGE, linestyle=":", linewidth=1)
    axis.set_yscale("log")
    axis.set(ylim=(0.04, 40), yticks=[0.1, 1, 10], yticklabels=["0.1", "1", "10"])
    axis.minorticks_off()
    titles = [title.replace(" that", "\nthat").replace(" H", "\nH") for title in SPEEDS.values()]
    axis.set_xticks(range(len(SPEEDS)), titles)
    axis.set_title(f"2 cores, without options: speed as a multiple of {REFERENCE}")
    axis.legend(frameon=False, ncols=2, loc="upper left", fontsize=10)


if __name__ == "__main__":
    save_picture(draw(), "overview", 150)
