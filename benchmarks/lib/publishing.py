"""Durations of publishing weights, and of the memory copies that publishing needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from parenv import AsyncWorkerPool, TorchPolicy


class Weighty(torch.nn.Module):
    """Module with weights of a given size that do not affect its actions.

    Args:
        num_bytes: Size of the weights in bytes.
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(num_bytes // 4))

    def act(self, observations: Any) -> Any:
        """Return zeros."""
        return torch.zeros(len(observations), dtype=torch.int64)


def weighty_policy(num_bytes: int) -> TorchPolicy:
    """Make a policy from a :class:`Weighty` module."""
    return TorchPolicy(Weighty(num_bytes), "act", ("actions",))


def publish_s(pool: AsyncWorkerPool, policy: TorchPolicy, rounds: int) -> float:
    """Return the mean seconds from ``publish`` until all workers hold the new version."""
    began = time.perf_counter()
    for _ in range(rounds):
        pool.publish(policy)
        pool.synchronize()
    return (time.perf_counter() - began) / rounds


def copies_s(blocks: Sequence[Any], rounds: int) -> float:
    """Return the mean seconds for copying the first block to all others."""
    began = time.perf_counter()
    for _ in range(rounds):
        for target in blocks[1:]:
            np.copyto(target, blocks[0])
    return (time.perf_counter() - began) / rounds
