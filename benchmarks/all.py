"""Every benchmark, one after the other, and the tables at the end: make bench.

One that fails, as where a peer cannot be installed or there is no network namespace to be had, is named at the end; the
others go on.

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
    "many_workers",
    "interpreters",
    "collecting",
    "publish",
    "scaling",
    "tracing",
    "agents",
    "startup",
    "vector_env",
    "waiting",
    "evaluation",
    "by_hand",
    "batches",
    "central",
    "gradients",
    "learning_curves",
    "gradient_curves",
    "learners",
    "sb3_accelerate",
    "rock_paper_scissors",
    "evolving",
    "nemesis",
    "faults",
    "remote",
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
    "tables/readme",
)


def run_all(names: Sequence[str], folder: Path = HERE) -> list[str]:
    """Run them; those that failed.

    Args:
        names: of scripts, without their suffix, and arguments behind.
        folder: where they are.
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
