"""Plot of the README: throughput with 1 to 15 workers, and speed without options on two cores, free and busy.

The values are the results of ``peers/cores.py`` and ``choice.py``.

python benchmarks/tables/overview.py
"""

from __future__ import annotations

from typing import Any

from sections import RESULTS, read
from speeds import BUSY, CASES, FREE, REFERENCE, ratios

OURS, THEIRS, EDGE = "#1f6fb4", "#7d848c", "#8a9099"
WORKERS = (1, 2, 4, 8, 15)
LINES = {
    "limit": ("upper bound: independent processes", {"color": EDGE, "linestyle": ":"}),
    "parenv, step": ("parenv", {"color": OURS, "linewidth": 2.5}),
    "Gymnasium AsyncVectorEnv": ("AsyncVectorEnv", {"color": THEIRS}),
    "SB3 SubprocVecEnv": ("SubprocVecEnv", {"color": THEIRS, "linestyle": "--"}),
}
BARS = {"parenv": OURS, "AsyncVectorEnv": "#aab0b6", "SubprocVecEnv": "#d3d6da"}
PANELS = {FREE: "Speed on 2 free cores", BUSY: "Speed beside a busy loop per core"}


def growth() -> dict[str, list[float]]:
    """Return env steps per second with 120 HalfCheetahs, by system, for each number of workers."""
    found = read("peers_cores")
    return {name: [found[f"halfcheetah-{workers}"][name]["median"] for workers in WORKERS] for name in LINES}


def draw() -> None:
    """Write ``results/overview.png``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # Two panels beside each other cannot be read on a phone.
    figure, (above, *below) = plt.subplots(3, 1, figsize=(7.2, 9.6), layout="constrained", height_ratios=(3, 3, 3))
    _lines(above, growth())
    for axis, (condition, title) in zip(below, PANELS.items(), strict=True):
        _bars(axis, ratios(condition), f"{title}, without options: multiple of {REFERENCE}")
    below[0].legend(frameon=False, fontsize=9, loc="upper left")
    figure.savefig(RESULTS / "overview.png", dpi=130, facecolor="white")


def _lines(axis: Any, rates: dict[str, list[float]]) -> None:
    for name, (label, style) in LINES.items():
        axis.plot(WORKERS, rates[name], **style)
        above = 4 if name != "SB3 SubprocVecEnv" else -9
        axis.annotate(
            f"{label}  {rates[name][-1] / 1000:,.0f}k",
            (WORKERS[-1], rates[name][-1]),
            xytext=(-6, above),
            textcoords="offset points",
            ha="right",
            va="bottom" if above > 0 else "top",
            color=style["color"],
            fontweight="bold" if label == "parenv" else "normal",
        )
    axis.set_title("Step 120 HalfCheetahs on 16 cores: env steps/s by workers", fontsize=11)
    axis.set(xlim=(1, 15.2), ylim=(0, 1.08 * max(rates["limit"])), xticks=WORKERS)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
    axis.spines[["top", "right"]].set_visible(False)


def _bars(axis: Any, found: dict[str, dict[str, float]], title: str) -> None:
    for place, (system, colour) in enumerate(BARS.items()):
        for number, case in enumerate(CASES):
            ratio, left = found[case][system], number + 0.27 * (place - 1)
            axis.bar(left, ratio, 0.26, color=colour, label=system if number == 0 else None)
            text = f"{ratio:.1f}" if ratio >= 0.95 else f"{ratio:.2f}".removeprefix("0")
            axis.text(left, ratio * 1.06, text, ha="center", fontsize=8, color=OURS if system == "parenv" else THEIRS)
    axis.axhline(1.0, color=EDGE, linestyle=":", linewidth=1)
    axis.set_yscale("log")
    axis.set(ylim=(0.04, 30), xticks=range(len(CASES)), yticks=[0.1, 1, 10], yticklabels=["0.1", "1", "10"])
    axis.minorticks_off()
    axis.set_xticklabels([title.replace(" that", "\nthat") for title in CASES.values()], fontsize=8.5)
    axis.set_title(title, fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw()
