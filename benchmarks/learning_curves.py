"""Learning curves of the examples without and with a synchronous pool: return over env steps and over seconds.

python benchmarks/learning_curves.py
"""

from __future__ import annotations

import importlib
import statistics
import sys
from pathlib import Path
from typing import Any

from lib.common import RESULTS, save

SEEDS = (1, 2, 3)
NAMES = {"PPO": ("ppo_plain", "ppo"), "DQN": ("dqn_plain", "dqn")}
LABELS = ("plain, one process", "with the pool, 2 workers")


def run(name: str) -> list[Any]:
    """Run an example and return one curve per seed."""
    main = importlib.import_module(name).main
    return [main(["--seed", str(seed)]).points for seed in SEEDS]


def draw(curves: dict[str, list[list[Any]]], path: Path) -> None:
    """Plot the return over env steps (left) and over seconds (right), with one row per algorithm."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(curves), 2, figsize=(11, 7), sharey=True, squeeze=False, layout="constrained")
    for row, (algorithm, versions) in zip(axes, curves.items(), strict=True):
        for column, (axis, unit) in enumerate(zip(row, ("env steps", "seconds"), strict=True)):
            for version, label, colour in zip(versions, LABELS, ("tab:gray", "tab:blue"), strict=True):
                for seed, points in enumerate(version):
                    x = [point[column] for point in points]
                    y = [point[2] for point in points]
                    axis.plot(x, y, color=colour, alpha=0.8, linewidth=1.3, label=label if seed == 0 else None)
            axis.axhline(475, color="black", linestyle=":", linewidth=1)
            axis.set_xlabel(unit)
            axis.set_title(f"{algorithm} on CartPole-v1 over {unit}")
        row[0].set_ylabel("mean return of the last 100 episodes")
        row[0].legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    curves = {algorithm: [run(name) for name in names] for algorithm, names in NAMES.items()}
    found: dict[str, Any] = {}
    for algorithm, versions in curves.items():
        for label, version in zip(LABELS, versions, strict=True):
            found[f"{algorithm}, {label}"] = {
                "env_steps_to_475": [points[-1][0] for points in version],
                "seconds_to_475": [round(points[-1][1], 1) for points in version],
                "final_mean_return": [round(points[-1][2], 1) for points in version],
                "median_env_steps": statistics.median(points[-1][0] for points in version),
                "median_seconds": round(statistics.median(points[-1][1] for points in version), 1),
            }
    draw(curves, RESULTS / "learning_curves.png")
    save("learning_curves", found)
