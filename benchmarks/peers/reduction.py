"""Question 6: how long does it take to average the gradients of two processes, of 1 MB and of 40 MB?

Times are in milliseconds. The lower bound is the time in which one process reads both gradients.

python benchmarks/peers/reduction.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

from asked import System, compared, summary
from lib.common import save

MEGABYTES = (1, 40)
SECONDS, REPEATS = 1.0, 3


def systems(megabytes: int) -> list[System]:
    """Return the systems that average gradients, and the lower bound."""
    size = {"megabytes": megabytes}
    return [
        System("limit", "parenv", "reducing", "reading", size),
        System("parenv", "parenv", "our_pool", "reduction", size),
        System("torch.distributed, gloo", "plain", "reducing", "by_gloo", size),
        System("Ray, object store", "rllib", "ray_actors", "reduction", {**size, "num_workers": 2}),
        System("multiprocessing.Pipe", "parenv", "reducing", "by_pipe", size),
    ]


if __name__ == "__main__":
    sizes = {f"{megabytes} MB": systems(megabytes) for megabytes in MEGABYTES}
    save(
        "peers_reduction", {size: summary(compared(asked, REPEATS, SECONDS), "limit") for size, asked in sizes.items()}
    )
