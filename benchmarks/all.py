"""Every benchmark, one after the other: make bench."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    "nemesis",
    "faults",
    "peers/stepping",
    "peers/sleeping",
    "peers/startup",
    "peers/rollouts",
    "peers/weights",
    "peers/reduction",
    "peers/to_475",
    "overview",
    "table",
)

if __name__ == "__main__":
    for name in NAMES:
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, str(Path(__file__).parent / f"{name}.py")], check=True)
