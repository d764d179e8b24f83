"""Question 6: milliseconds for the mean of two processes' gradients, of 1 MB and of 40 MB.

The limit is one process that reads both.

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
    """Return the systems that add up gradients, and the upper bound."""
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
