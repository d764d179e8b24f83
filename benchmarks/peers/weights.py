"""Question 5: how long does it take until each of 4 workers has its own copy of 1 MB and of 40 MB of weights?

Times are in milliseconds and end with the last acknowledgement. The lower bound is the time in which one process makes
five copies: one to hand out, and one for each worker.

python benchmarks/peers/weights.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

from asked import System, compared, summary
from lib.common import save

NUM_WORKERS, MEGABYTES = 4, (1, 40)
SECONDS, REPEATS = 1.0, 3


def systems(megabytes: int) -> list[System]:
    """Return the systems that hand out weights, and the lower bound."""
    sizes = {"megabytes": megabytes, "num_workers": NUM_WORKERS}
    return [
        System("limit", "parenv", "exchange", "copies", sizes),
        System("parenv", "parenv", "our_pool", "weights", sizes),
        System("Ray, object store", "rllib", "ray_actors", "weights", sizes),
        System("TorchRL, queues", "plain", "torchrl_collectors", "weights", {**sizes, "kind": "private"}),
        System("TorchRL, one copy for all", "plain", "torchrl_collectors", "weights", {**sizes, "kind": "shared"}),
        System("multiprocessing.Pipe", "parenv", "exchange", "by_pipe", sizes),
        System("multiprocessing.Queue", "parenv", "exchange", "by_queue", {**sizes, "kind": "multiprocessing"}),
        System("torch.multiprocessing.Queue", "parenv", "exchange", "by_queue", {**sizes, "kind": "torch"}),
    ]


if __name__ == "__main__":
    sizes = {f"{megabytes} MB": systems(megabytes) for megabytes in MEGABYTES}
    save("peers_weights", {size: summary(compared(asked, REPEATS, SECONDS), "limit") for size, asked in sizes.items()})
