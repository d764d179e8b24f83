"""Which worker gets how many sub-environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from parenv.errors import ConfigurationError
from parenv.options import Parallelism, Placing, WorkerOptions
from parenv.process.cores import Learner, recommended_num_workers


def split(num_envs: int | None, num_workers: int | None, parallelism: Parallelism = "experience") -> tuple[int, ...]:
    """Sub-environments of each worker, as even as can be.

    Raises:
        ConfigurationError: fewer sub-environments than workers.

    >>> split(7, 3), split(None, 2), split(5, 0)
    ((3, 2, 2), (1, 1), (5,))
    """
    if num_workers is None:
        num_workers = min(recommended_num_workers(parallelism), num_envs or 1 << 30)
    num_workers = max(1, num_workers)
    num_envs = num_workers if num_envs is None else num_envs
    if num_envs < num_workers:
        raise ConfigurationError(
            f"num_envs={num_envs} is fewer than num_workers={num_workers}, so some workers would have nothing to step: "
            f"use num_workers={num_envs} or num_envs={num_workers}"
        )
    return tuple(num_envs // num_workers + (worker < num_envs % num_workers) for worker in range(num_workers))


class Part(NamedTuple):
    """What one learner's pool has of all workers.

    Args:
        shares: sub-environments of each of its workers.
        first_worker: how many workers the learners before it have.
        first_env_id: how many sub-environments they have.
    """

    shares: tuple[int, ...]
    first_worker: int
    first_env_id: int


def part_of(learner: Learner, num_envs: int | None, num_workers: int | None, parallelism: Parallelism) -> Part:
    """Split sub-environments and workers, counted over all learners, so that together they are as one pool would be.

    Raises:
        ConfigurationError: there is not a sub-environment, or not a worker, for each learner.

    >>> part_of(Learner(1, 2), 8, 4, "experience")
    Part(shares=(2, 2), first_worker=2, first_env_id=4)
    """
    rank, world, local = learner
    if any(count is not None and 0 < count < world for count in (num_envs, num_workers)):
        raise ConfigurationError(
            f"there are {world} learners, but num_envs={num_envs} and num_workers={num_workers}: both are counted over "
            "all learners, each of which needs at least one"
        )
    if num_workers is None and world > 1:
        machines = world // local
        num_workers = min(max(world, recommended_num_workers(parallelism) * machines), num_envs or 1 << 30)
    if num_workers == 0:
        num_workers = world
    shares = split(num_envs, num_workers, parallelism)
    first, stop = len(shares) * rank // world, len(shares) * (rank + 1) // world
    return Part(shares[first:stop], first, sum(shares[:first]))


def by_worker(
    env_ids: Sequence[int], shares: Sequence[int], first_env_id: int = 0
) -> dict[int, tuple[list[int], list[int]]]:
    """Some sub-environments by the worker that has them: their env_ids, and their columns there.

    >>> by_worker([6, 4, 5], shares=(2, 2), first_env_id=4)
    {1: ([6], [0]), 0: ([4, 5], [0, 1])}
    """
    stops = np.cumsum(shares)
    found: dict[int, tuple[list[int], list[int]]] = {}
    for env_id in env_ids:
        worker = int(np.searchsorted(stops, env_id - first_env_id, "right"))
        ids, columns = found.setdefault(worker, ([], []))
        ids.append(env_id)
        columns.append(int(env_id - first_env_id - stops[worker] + shares[worker]))
    return found


def each_worker(
    env_ids: Sequence[int], shares: Sequence[int], each: Sequence[Any], shared: Sequence[Any], first_env_id: int = 0
) -> dict[int, tuple[Any, ...]]:
    """The arguments of a call on every worker that it concerns.

    Args:
        env_ids: whom it is for.
        shares: sub-environments of each worker.
        each: arguments with one value for each sub-environment there is; a worker gets those of its own.
        shared: arguments that are the same for all.
        first_env_id: of the first worker.
    """
    return {
        worker: (columns, *([values[env_id] for env_id in ids] for values in each), *shared)
        for worker, (ids, columns) in by_worker(env_ids, shares, first_env_id).items()
    }


def placed_workers(placement: Any, num_workers: Any) -> Any:
    """How many workers there are to be with a placement.

    Raises:
        ConfigurationError: it is no placement, or does not fit the number of workers.
    """
    if placement is None:
        return num_workers
    kinds = get_args(Placing)
    if not isinstance(placement, kinds):
        *others, last = (f"a {kind.__name__}" for kind in kinds if kind is not type(None))
        raise ConfigurationError(f"placement must be {', '.join(['None', *others])} or {last}, got {placement!r}")
    return placement.count_workers(num_workers)


def leave_to_pools(options: WorkerOptions, reasons: Mapping[str, str]) -> None:
    """Refuse fields that mean something in pools only, unless they are as by default.

    Args:
        options: of the workers of something else.
        reasons: by field, why it means nothing there.

    Raises:
        ConfigurationError: one of them is set.
    """
    for name, why in reasons.items():
        if getattr(options, name) != getattr(WorkerOptions, name):
            raise ConfigurationError(f"WorkerOptions.{name} is for pools: {why}. Leave it out")
