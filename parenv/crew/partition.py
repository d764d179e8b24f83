"""Partition of sub-environments and workers among learners, and of sub-environments among workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from parenv.errors import ConfigurationError
from parenv.options import Mode, Parallelism, Placing, WorkerOptions
from parenv.platform.limits import check_possible
from parenv.process.cores import Learner, recommended_num_workers


def split(
    num_envs: int | None, num_workers: int | None, parallelism: Parallelism = "experience", mode: Mode = "async"
) -> tuple[int, ...]:
    """Return the number of sub-environments of each worker, as even as possible.

    Raises:
        ConfigurationError: There are fewer sub-environments than workers.

    >>> split(7, 3), split(None, 2), split(5, 0)
    ((3, 2, 2), (1, 1), (5,))
    """
    if num_workers is None:
        num_workers = min(recommended_num_workers(parallelism, mode=mode), num_envs or 1 << 30)
    num_workers = max(1, num_workers)
    num_envs = num_workers if num_envs is None else num_envs
    if num_envs < num_workers:
        raise ConfigurationError(
            f"num_envs must be at least num_workers={num_workers}, so that each worker steps a sub-environment, got "
            f"{num_envs}. Use num_workers={num_envs} or num_envs={num_workers}."
        )
    return tuple(num_envs // num_workers + (worker < num_envs % num_workers) for worker in range(num_workers))


class LearnerPart(NamedTuple):
    """Part of all workers that the pool of one learner has.

    Args:
        shares: Number of sub-environments of each of its workers.
        first_worker: Number of workers of the learners before it.
        first_env_id: Number of sub-environments of the learners before it.
    """

    shares: tuple[int, ...]
    first_worker: int
    first_env_id: int


def part_of(
    learner: Learner, num_envs: int | None, num_workers: int | None, parallelism: Parallelism, mode: Mode = "async"
) -> LearnerPart:
    """Return the part of a learner. All parts together have the workers of a single pool.

    Raises:
        ConfigurationError: There are fewer sub-environments or workers than learners.

    >>> part_of(Learner(1, 2), 8, 4, "experience")
    LearnerPart(shares=(2, 2), first_worker=2, first_env_id=4)
    """
    rank, world, local = learner
    if any(count is not None and 0 < count < world for count in (num_envs, num_workers)):
        raise ConfigurationError(
            f"num_envs and num_workers must be at least {world}, because each of {world} learners needs one, got "
            f"{num_envs} and {num_workers}. Pass the total numbers of all learners."
        )
    if num_workers is None and world > 1:
        machines = world // local
        num_workers = min(max(world, recommended_num_workers(parallelism, mode=mode) * machines), num_envs or 1 << 30)
    if num_workers == 0:
        num_workers = world
    shares = split(num_envs, num_workers, parallelism, mode)
    first, stop = len(shares) * rank // world, len(shares) * (rank + 1) // world
    return LearnerPart(shares[first:stop], first, sum(shares[:first]))


def each_worker(
    env_ids: Sequence[int], shares: Sequence[int], each: Sequence[Any], shared: Sequence[Any], first_env_id: int = 0
) -> dict[int, tuple[Any, ...]]:
    """Return the arguments of a call by worker: the columns that are called, and the values for them.

    Args:
        env_ids: Sub-environments to call.
        shares: Sub-environments of each worker.
        each: Arguments with a value per sub-environment, by env_id. A worker gets the values of its own.
        shared: Arguments that are the same for all.
        first_env_id: First sub-environment of the first worker.

    >>> each_worker([6, 4, 5], (2, 2), [{4: "a", 5: "b", 6: "c"}], ["name"], first_env_id=4)
    {1: ([0], ['c'], 'name'), 0: ([0, 1], ['a', 'b'], 'name')}
    """
    stops = np.cumsum(shares)
    columns: dict[int, list[int]] = {}
    values: dict[int, list[list[Any]]] = {}
    for env_id in env_ids:
        worker = int(np.searchsorted(stops, env_id - first_env_id, "right"))
        columns.setdefault(worker, []).append(int(env_id - first_env_id - stops[worker] + shares[worker]))
        for found, one in zip(values.setdefault(worker, [[] for _ in each]), each, strict=True):
            found.append(one[env_id])
    return {worker: (columns[worker], *values[worker], *shared) for worker in columns}


def placed_workers(placement: Any, num_workers: Any) -> Any:
    """Return the number of workers with a placement.

    Raises:
        ConfigurationError: The value is not a placement, or does not fit the number of workers.
    """
    if placement is None:
        return num_workers
    kinds = get_args(Placing)
    if not isinstance(placement, kinds):
        *others, last = (f"a {kind.__name__}" for kind in kinds if kind is not type(None))
        raise ConfigurationError(f"placement must be {', '.join(['None', *others])} or {last}, got {placement!r}")
    check_possible("hosts")
    return placement.count_workers(num_workers)


def leave_to_pools(options: WorkerOptions, reasons: Mapping[str, str]) -> None:
    """Refuse options that only pools have, unless they have their defaults.

    Args:
        options: Options of the workers of a vector env or a population.
        reasons: Reason for the refusal, by name of the option.

    Raises:
        ConfigurationError: One of the options is set.
    """
    for name, why in reasons.items():
        if getattr(options, name) != getattr(WorkerOptions, name):
            raise ConfigurationError(f"WorkerOptions.{name} needs a pool: {why}. Leave it out.")
