"""Learning curves of A2C with 1, 2 and 4 workers, and of A3C with gradients and with experience; policy lag of A3C.

python benchmarks/gradient_curves.py
"""

from __future__ import annotations

import importlib
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from lib.common import RESULTS, save

SEEDS = (1, 2, 3, 4)
RUNS: dict[str, tuple[str, list[str]]] = {
    "A2C, 1 worker": ("a2c", ["--num-workers", "1"]),
    "A2C, 2 workers": ("a2c", ["--num-workers", "2"]),
    "A2C, 4 workers": ("a2c", ["--num-workers", "4"]),
    "A3C, gradients": ("a3c", []),
    "A3C, experience": ("a3c", ["--data-parallel"]),
}
COLOURS = dict(zip(RUNS, ("tab:gray", "tab:blue", "tab:cyan", "tab:red", "tab:orange"), strict=True))


def draw(curves: dict[str, list[Any]], path: Path) -> None:
    """Draw the return over env steps of the sync and of the async runs, and their policy lag."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (sync, asynchronous, lags) = plt.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for name, runs in curves.items():
        axis = sync if name.startswith("A2C") else asynchronous
        steps = np.linspace(0, max(run.points[-1][0] for run in runs), 200)
        # A run that has ended keeps its last value.
        curves_of_seeds = [np.interp(steps, *list(zip(*run.points, strict=True))[::2]) for run in runs]
        axis.fill_between(steps, np.min(curves_of_seeds, 0), np.max(curves_of_seeds, 0), color=COLOURS[name], alpha=0.2)
        axis.plot(steps, np.median(curves_of_seeds, 0), color=COLOURS[name], linewidth=1.5, label=name)
    for axis, title in ((sync, "A2C (sync), equal samples"), (asynchronous, "A3C (async)")):
        axis.axhline(475, color="black", linestyle=":", linewidth=1)
        axis.set(
            xlabel="env steps",
            ylabel="mean return of the last 100 episodes",
            title=f"{title}: median and range of {len(SEEDS)} seeds",
        )
        axis.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:.0f}k")
        axis.legend(loc="lower right", frameon=False)
    for name, offset in (("A3C, gradients", -0.2), ("A3C, experience", 0.2)):
        counts = lag_of(curves[name])
        total = sum(counts.values())
        places = [lag + offset for lag in counts]
        lags.bar(places, [n / total for n in counts.values()], 0.4, color=COLOURS[name], label=name)
    lags.set(xlabel="policy lag, versions", ylabel="share of gradients or rollouts", title="Policy lag of A3C")
    lags.legend(frameon=False)
    figure.savefig(path, dpi=110)


def lag_of(runs: list[Any]) -> Counter[int]:
    """Return the number of occurrences of each policy lag in all runs together, in ascending order of lag."""
    counts: Counter[int] = Counter()
    for run in runs:
        counts.update(run.policy_lag)
    return Counter(dict(sorted(counts.items())))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    curves: dict[str, list[Any]] = {}
    for seed in SEEDS:
        for name, (example, arguments) in RUNS.items():
            print(f"== {name}, seed {seed}", flush=True)
            curves.setdefault(name, []).append(importlib.import_module(example).main(["--seed", str(seed), *arguments]))
    draw(curves, RESULTS / "gradient_curves.png")
    found: dict[str, Any] = {}
    for name, runs in curves.items():
        last = [run.points[-1] for run in runs]
        found[name] = {
            "env_steps_to_475": [point[0] for point in last],
            "seconds_to_475": [round(point[1], 1) for point in last],
            "final_mean_return": [round(point[2], 1) for point in last],
            "median_env_steps": statistics.median(point[0] for point in last),
            "median_seconds": statistics.median(point[1] for point in last),
        }
        if name.startswith("A3C"):
            found[name]["policy_lag"] = lag_of(runs)
    save("gradient_curves", found)
