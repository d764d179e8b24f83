"""The picture of the README: env steps per second of parenv and its peers on the same work, the best of each library.

Drawn from what ``peers/stepping.py`` and ``peers/rollouts.py`` have written.

python benchmarks/tables/overview.py
"""

from __future__ import annotations

from typing import Any

import field

OURS, THEIRS, EDGE = "#1f6fb4", "#b3b8bf", "#8a9099"
STEPPING, ROLLOUTS = "cartpole-64", "peers_rollouts"
TITLES = ("64 CartPoles, stepped with random actions", "64 CartPoles and a small network: rollouts")


def stepping() -> dict[str, float]:
    """Env steps per second of vector envs, and of EnvPool on environments that are its own."""
    found = field.read("peers_stepping")[STEPPING]
    rates = {name: one["median"] for name, one in found.items() if "median" in one}
    return field.best_of_each(rates) | {
        field.OWN_ENVIRONMENTS: max(rate for name, rate in rates.items() if name.startswith("EnvPool"))
    }


def rollouts() -> dict[str, float]:
    """Env steps per second at which the systems deliver rollouts of the same network's actions."""
    found = field.read(ROLLOUTS)
    return field.best_of_each({name: one["median"] for name, one in found.items() if "median" in one})


def draw() -> None:
    """Write ``results/overview.png``: the most steps on top, parenv in colour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    parts = [stepping(), rollouts()]
    # One above the other: beside each other they cannot be read on a telephone.
    figure, axes = plt.subplots(2, 1, figsize=(7.2, 6.2), layout="constrained")
    for axis, title, rates in zip(axes, TITLES, parts, strict=True):
        _panel(axis, title, rates)
    figure.suptitle("Env steps per second on the same two cores, best variant of each library", fontsize=12)
    figure.savefig(field.RESULTS / "overview.png", dpi=130)


def _panel(axis: Any, title: str, rates: dict[str, float]) -> None:
    names = sorted(rates, key=lambda name: -rates[name])
    for row, name in enumerate(names):
        axis.barh(row, rates[name], 0.72, **_style(name))
        axis.text(rates[name] + 0.015 * rates[names[0]], row, f"{rates[name]:,.0f}", va="center", fontsize=10)
    axis.set_yticks(range(len(names)), names, fontsize=10)
    for label in axis.get_yticklabels():
        label.set(**({"color": OURS, "fontweight": "bold"} if label.get_text() == "parenv" else {}))
    axis.set_title(title, fontsize=11)
    axis.set(xlim=(0, 1.17 * rates[names[0]]), ylim=(len(names) - 0.4, -0.6))
    axis.set_xticks([])
    axis.spines[["top", "right", "bottom"]].set_visible(False)


def _style(name: str) -> dict[str, Any]:
    if name == field.OWN_ENVIRONMENTS:
        return {"color": "#e6e8eb", "hatch": "////", "edgecolor": EDGE, "linewidth": 0}
    return {"color": OURS if name == "parenv" else THEIRS}


if __name__ == "__main__":
    draw()
