"""Publishing weights until 4 workers hold a private copy, against the five memory copies that this takes.

python benchmarks/publish.py
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from common import interleaved, save, summary

from parenv import AsyncWorkerPool, TorchPolicy

WORKERS, ROUNDS, REPEATS = 4, 20, 5


class Weighty(torch.nn.Module):
    """Acts without its weights, of which it has many.

    Args:
        num_bytes: how many.
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(num_bytes // 4))

    def act(self, observations: Any) -> Any:
        """Zeros."""
        return torch.zeros(len(observations), dtype=torch.int64)


def weighty_policy(num_bytes: int) -> TorchPolicy:
    """Acts by a :class:`Weighty`."""
    return TorchPolicy(Weighty(num_bytes), "act", ("actions",))


def publish_s(pool: AsyncWorkerPool, policy: TorchPolicy, rounds: int) -> float:
    """Seconds per publish, until all workers hold it."""
    began = time.perf_counter()
    for _ in range(rounds):
        pool.publish(policy)
        pool.synchronize()
    return (time.perf_counter() - began) / rounds


def copies_s(blocks: Sequence[Any], rounds: int) -> float:
    """Seconds in which the first block is copied to all others."""
    began = time.perf_counter()
    for _ in range(rounds):
        for target in blocks[1:]:
            np.copyto(target, blocks[0])
    return (time.perf_counter() - began) / rounds


def measure(megabytes: int) -> Any:
    """Both, interleaved."""
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
