"""Plot of the README: throughput with 1 to 15 workers, and throughput on two cores, beside other vector envs.

The values are the results of ``peers/cores.py`` and ``peers/stepping.py``.

python benchmarks/tables/overview.py
"""

from __future__ import annotations

from typing import Any

from sections import RESULTS, read

OURS, THEIRS, EDGE = "#1f6fb4", "#7d848c", "#8a9099"
WORKERS = (1, 2, 4, 8, 15)
LINES = {
    "limit": ("upper bound: independent processes", {"color": EDGE, "linestyle": ":"}),
    "parenv, step": ("parenv", {"color": OURS, "linewidth": 2.5}),
    "Gymnasium AsyncVectorEnv": ("AsyncVectorEnv", {"color": THEIRS}),
    "SB3 SubprocVecEnv": ("SubprocVecEnv", {"color": THEIRS, "linestyle": "--"}),
}
BARS = {
    "EnvPool, own C++ envs, step": "EnvPool (C++ environments)",
    "parenv, caller and one worker": "parenv (caller, 1 worker)",
    "parenv, step": "parenv (2 workers)",
    "Gymnasium SyncVectorEnv": "SyncVectorEnv (1 process)",
    "Gymnasium AsyncVectorEnv": "AsyncVectorEnv",
    "SB3 SubprocVecEnv": "SubprocVecEnv",
}


def growth() -> dict[str, list[float]]:
    """Return env steps per second with 120 HalfCheetahs, by system, for each number of workers."""
    found = read("peers_cores")
    return {name: [found[f"halfcheetah-{workers}"][name]["median"] for workers in WORKERS] for name in LINES}


def stepping() -> dict[str, float]:
    """Return env steps per second with 64 CartPoles on two cores, by system."""
    found = read("peers_stepping")["cartpole-64"]
    return {label: found[name]["median"] for name, label in BARS.items()}


def draw() -> None:
    """Write ``results/overview.png``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # Two panels beside each other cannot be read on a phone.
    figure, (above, below) = plt.subplots(2, 1, figsize=(7.2, 7.0), layout="constrained", height_ratios=(3, 2))
    _lines(above, growth())
    _bars(below, stepping())
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


def _bars(axis: Any, rates: dict[str, float]) -> None:
    for row, (name, rate) in enumerate(rates.items()):
        style = {"color": OURS if name.startswith("parenv") else THEIRS}
        if name.startswith("EnvPool"):
            style = {"color": "#e6e8eb", "hatch": "////", "edgecolor": EDGE, "linewidth": 0}
        axis.barh(row, rate, 0.72, **style)
        axis.text(rate + 0.015 * max(rates.values()), row, f"{rate / 1000:,.0f}k", va="center", fontsize=10)
    axis.set_yticks(range(len(rates)), list(rates), fontsize=10)
    for label in axis.get_yticklabels():
        label.set(**({"color": OURS, "fontweight": "bold"} if label.get_text().startswith("parenv") else {}))
    axis.set_title("Step 64 CartPoles on 2 cores: env steps/s", fontsize=11)
    axis.set(xlim=(0, 1.12 * max(rates.values())), ylim=(len(rates) - 0.4, -0.6))
    axis.set_xticks([])
    axis.spines[["top", "right", "bottom"]].set_visible(False)


if __name__ == "__main__":
    draw()
