"""Every benchmark, one after the other, and the tables at the end: make bench.

One that fails, as where a peer cannot be installed or there is no network namespace to be had, is named at the end; the
others go on.

python benchmarks/all.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = (
    "rollouts",
    "driver",
    "publish",
    "scaling",
    "tracing",
    "advice",
    "startup",
    "vector_env",
    "gradients",
    "learning_curves",
    "gradient_curves",
    "learners",
    "gallery",
    "nemesis",
    "faults",
    "remote",
    "gpu",
    "peers/stepping",
    "peers/sleeping",
    "peers/startup",
    "peers/rollouts",
    "peers/weights",
    "peers/reduction",
    "peers/to_475",
    "tables/overview",
    "tables/table",
)


def run_all(scripts: list[Path]) -> list[Path]:
    """Run them; those that failed."""
    failed = []
    for script in scripts:
        print(f"== {script.stem}", flush=True)
        if subprocess.run([sys.executable, str(script)]).returncode:
            failed.append(script)
    return failed


if __name__ == "__main__":
    if failed := run_all([HERE / f"{name}.py" for name in NAMES]):
        sys.exit(f"failed: {', '.join(str(script.relative_to(HERE)) for script in failed)}")
