"""Question 4: how long do 8 workers with one CartPole each take to start, and how much memory do they need?

The time ends with the first observation. Each start has a new process, which has imported all modules before. Memory is
the proportional set size (PSS) of all processes of a system, including the process that starts it.

python benchmarks/peers/startup.py
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

from asked import System, compared
from lib.common import keep

WORKERS, REPEATS = 8, 3
CASE = f"{WORKERS} workers"
ENVS = {"case": "cartpole", "num_envs": WORKERS}
POOL = {"case": "cartpole", "num_workers": WORKERS}
STARTS = (
    ("Gymnasium AsyncVectorEnv", "gymnasium_envs", ("fork", "forkserver", "spawn")),
    ("SB3 SubprocVecEnv", "sb3_envs", ("fork", "forkserver", "spawn")),
    ("Tianshou SubprocVectorEnv", "tianshou_envs", ("fork", "spawn")),
    ("TorchRL ParallelEnv", "torchrl_envs", ("fork", "spawn")),
)
SYSTEMS = [
    System("parenv ParallelVectorEnv, a later one", "parenv", "ours", "startup", {**ENVS, "warm": True}, True),
    System("parenv ParallelVectorEnv, the first", "parenv", "ours", "startup", {**ENVS, "warm": False}, True),
    System("parenv AsyncWorkerPool, a later one", "parenv", "ours", "pool_startup", {**POOL, "warm": True}, True),
    System("parenv AsyncWorkerPool, the first", "parenv", "ours", "pool_startup", {**POOL, "warm": False}, True),
    *(
        System(f"{name}, {start}", "plain", module, "startup", {**ENVS, "start": start}, True)
        for name, module, starts in STARTS
        for start in starts
    ),
    System("PufferLib Multiprocessing, fork", "pufferlib", "pufferlib_envs", "startup", ENVS, True),
    System("RLlib env runners, with Ray", "rllib", "rllib_startup", "startup", {"num_workers": WORKERS}, True),
    System("Sample Factory", "sample_factory", "sample_factory_startup", "startup", {"num_workers": WORKERS}, True),
]


def medians(starts: Sequence[dict[str, float]] | str) -> dict[str, Any]:
    """Return the median of each value over all starts and the range of the seconds, or the reason of a failure."""
    if isinstance(starts, str):
        return {"failed": starts}
    seconds = [start["seconds"] for start in starts]
    found = {key: statistics.median(start[key] for start in starts) for key in starts[0]}
    return {**found, "min": min(seconds), "max": max(seconds)}


if __name__ == "__main__":
    found = compared(SYSTEMS, REPEATS, 0.0)
    keep("peers_startup", CASE, {name: medians(starts) for name, starts in found.items()})
