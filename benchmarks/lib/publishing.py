"""Weights that are published, and the copies that this takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from parenv import AsyncWorkerPool, TorchPolicy


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
