"""Rollouts, weights and gradients of parenv's ``AsyncWorkerPool``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from environments import factory

from parenv import AsyncWorkerPool, GradientOptions, TorchPolicy
from parenv.experience.reduction import Reducer
from systems.exchange import Source, milliseconds
from systems.loops import Close, Measure
from systems.networks import Agent
from systems.reducing import PROCESSES, Differentiators


def rollouts(num_envs: int, num_workers: int, rollout_length: int, mode: Any) -> tuple[Measure, Close]:
    """Measure rollouts in mode ``"async"`` or ``"sync"``."""
    sys.path.insert(1, str(Path(__file__).parents[2]))
    from lib.common import consumption_rate

    torch.set_num_threads(1)
    pool = AsyncWorkerPool(
        factory("cartpole"),
        TorchPolicy(Agent()),
        num_envs=num_envs,
        num_workers=num_workers,
        mode=mode,
        rollout_length=rollout_length,
    )

    def measure(seconds: float) -> float:
        rate = consumption_rate(pool, seconds)
        pool.synchronize()
        return rate

    return measure, pool.close


class Weighty(torch.nn.Module):
    """Policy with large weights that it does not use.

    Args:
        weights: Array of weights.
    """

    def __init__(self, weights: Any) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.from_numpy(weights))

    def act(self, observations: Any) -> Any:
        """Return the same action for all."""
        return torch.zeros(len(observations), dtype=torch.int64)


def weights(megabytes: int, num_workers: int) -> tuple[Measure, Close]:
    """Measure ``publish`` and ``synchronize``, which returns when every worker has loaded the weights."""
    source = Source(megabytes)
    policy = TorchPolicy(Weighty(source.weights), "act", ("actions",))
    pool = AsyncWorkerPool(factory("cartpole"), policy, num_workers=num_workers)

    def publish() -> None:
        pool.publish(policy)
        pool.synchronize()

    return milliseconds(publish, source.change), pool.close


def reduction(megabytes: int) -> tuple[Measure, Close]:
    """Measure the reduction of gradients.

    As in a pool with ``parallelism="gradient"``, each process copies its gradient into shared memory and the main
    process adds them.
    """
    rows = [torch.zeros(megabytes * 250_000).share_memory_() for _ in range(PROCESSES)]
    processes = Differentiators(megabytes, _write, [(row,) for row in rows])

    def reduce() -> None:
        processes.deliveries()
        reducer = Reducer(GradientOptions())
        reducer.add(rows, [1] * PROCESSES, 0)
        processes.check(reducer.result())

    return milliseconds(reduce, processes.prepare), processes.close


def _write(pipe: Any, gradient: Any, row: Any) -> None:
    row.copy_(gradient)
    pipe.send(None)
