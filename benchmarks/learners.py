"""DQN with one and with two learners at equal samples: seconds, loss and balanced steps after 100 to 1,000 iterations.

python benchmarks/learners.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lib.common import RESULTS, save

EXAMPLE = Path(__file__).parent.parent / "examples" / "dqn_ddp.py"
MARKS = ("100", "200", "500", "1000")
SEEDS = (1, 2, 3)
NAMES = ("iterations", "seconds", "loss", "env_steps", "steps_balanced")


def run(learners: int, seed: int) -> list[dict[str, float]]:
    """Run the example and return the rows that it prints."""
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(learners)] if learners > 1 else []
    )
    command = [sys.executable, *launcher, str(EXAMPLE), "--seed", str(seed), "--iterations", *MARKS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    table = [line.split() for line in done.stdout.splitlines()]
    return [dict(zip(NAMES, map(float, row), strict=True)) for row in table if row[0] in MARKS]


def draw(found: dict[str, list[list[dict[str, float]]]], path: Path) -> None:
    """Plot seconds and loss over iterations, and balanced steps over env steps, for one and for two learners."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    for (name, runs), colour in zip(found.items(), ("tab:gray", "tab:blue"), strict=True):
        for axis, (x, y) in zip(
            axes, (("iterations", "seconds"), ("iterations", "loss"), ("env_steps", "steps_balanced")), strict=True
        ):
            for seed, rows in enumerate(runs):
                label = name if seed == 0 else None
                axis.plot([row[x] for row in rows], [row[y] for row in rows], "o-", color=colour, label=label)
            axis.set(xlabel=x.replace("_", " "), ylabel=y.replace("_", " "))
    axes[0].set_title("DQN on CartPole-v1")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    found: dict[str, list[Any]] = {"one learner": [], "two learners": []}
    for seed in SEEDS:
        for learners, name in enumerate(found, start=1):
            print(f"== {name}, seed {seed}", flush=True)
            found[name].append(run(learners, seed))
    draw(found, RESULTS / "learners.png")
    save("learners", found)
