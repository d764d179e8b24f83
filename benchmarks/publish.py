"""Publishing weights until 4 workers hold a private copy, against the five memory copies that this takes.

python benchmarks/publish.py
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from common import interleaved, save, summary

from parenv import AsyncWorkerPool, TorchPolicy

WORKERS, ROUNDS, REPEATS = 4, 20, 5


class Weighty(torch.nn.Module):
    """Acts without its weights, of which it has many.

    Args:
        megabytes: how many.
    """

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(megabytes * 250_000))

    def act(self, observations: Any) -> Any:
        """Zeros."""
        return torch.zeros(len(observations), dtype=torch.int64)


def measure(megabytes: int) -> Any:
    """Both, interleaved."""
    policy = TorchPolicy(Weighty(megabytes), "act", ("actions",))
    pool = AsyncWorkerPool("CartPole-v1", policy, num_workers=WORKERS)
    blocks = [np.zeros(megabytes * 1_000_000, np.uint8) for _ in range(WORKERS + 2)]

    def publish() -> float:
        began = time.perf_counter()
        for _ in range(ROUNDS):
            pool.publish(policy)
            pool.synchronize()
        return (time.perf_counter() - began) / ROUNDS * 1000

    def copies() -> float:
        began = time.perf_counter()
        for _ in range(ROUNDS):
            for target in blocks[1:]:
                np.copyto(target, blocks[0])
        return (time.perf_counter() - began) / ROUNDS * 1000

    publish(), copies()
    found = summary(interleaved({"five copies, ms": copies, "publish, ms": publish}, REPEATS), "five copies, ms")
    pool.close()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    save("publish", {f"{megabytes} MB": measure(megabytes) for megabytes in (1, 40)})
