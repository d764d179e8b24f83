"""Time for publishing weights to 4 workers, compared with the five memory copies that this requires.

python benchmarks/publish.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lib.common import interleaved, save, summary
from lib.publishing import copies_s, publish_s, weighty_policy

from parenv import AsyncWorkerPool

WORKERS, ROUNDS, REPEATS = 4, 20, 5


def measure(megabytes: int) -> Any:
    """Measure copies and publishes of weights of this size in turn, and return their summary in milliseconds."""
    policy = weighty_policy(megabytes * 1_000_000)
    pool = AsyncWorkerPool("CartPole-v1", policy, num_workers=WORKERS)
    blocks = [np.zeros(megabytes * 1_000_000, np.uint8) for _ in range(WORKERS + 2)]
    measures = {
        "five copies, ms": lambda: 1000 * copies_s(blocks, ROUNDS),
        "publish, ms": lambda: 1000 * publish_s(pool, policy, ROUNDS),
    }
    for warm_up in measures.values():
        warm_up()
    found = summary(interleaved(measures, REPEATS), "five copies, ms")
    pool.close()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    save("publish", {f"{megabytes} MB": measure(megabytes) for megabytes in (1, 40)})
