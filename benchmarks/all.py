"""Run all benchmarks in sequence and write the tables at the end, as ``make bench`` does.

A benchmark that fails does not stop the others, for example if a library cannot be installed. The
script lists the failed benchmarks at the end.

python benchmarks/all.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
NAMES = (
    "rollouts",
    "driver",
    "interpreters",
    "scaling",
    "startup",
    "choice",
    "pinning",
    "batches",
    "gradients",
    "sb3_accelerate",
    "rock_paper_scissors",
    "nemesis",
    "faults",
    "sessions",
    "gpu",
    "peers/stepping",
    "peers/sleeping",
    "peers/startup",
    "peers/rollouts",
    "peers/cores",
    "peers/weights",
    "peers/reduction",
    "peers/to_475",
    "gallery cartpole-ppo",
    "gallery cartpole-dqn",
    "gallery lunarlander-ppo",
    "gallery halfcheetah-sac",
    "tables/overview",
    "tables/table",
)


def run_all(names: Sequence[str], folder: Path = HERE) -> list[str]:
    """Run scripts in sequence and return the names of those that failed.

    Args:
        names: Names of scripts without the suffix, each optionally followed by arguments.
        folder: Folder of the scripts.
    """
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        script, *arguments = name.split()
        if subprocess.run([sys.executable, str(folder / f"{script}.py"), *arguments]).returncode:
            failed.append(name)
    return failed


if __name__ == "__main__":
    if failed := run_all(NAMES):
        sys.exit(f"failed: {', '.join(failed)}")
