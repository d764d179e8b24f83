"""Number of cores that this process may use, and number of workers for them."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from parenv.errors import ConfigurationError
from parenv.options import Mode, Parallelism
from parenv.platform import system

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)


def usable_cores() -> int:
    """Return the number of cores that CPU affinity and the container's CPU limit leave to this process, at least 1."""
    return max(1, math.ceil(min(len(system.usable_core_numbers()), system.core_limit())))


def recommended_num_workers(
    parallelism: Parallelism = "experience", cores: int | None = None, mode: Mode = "async"
) -> int:
    """Return a number of workers for this machine.

    Experience parallelism leaves a third of the cores to the learner. In async mode this is at least one core. In sync
    mode the learner waits while the workers collect, so two workers share two cores. Gradient parallelism uses all
    cores, because the workers compute the gradients. On Windows, where workers are no processes, it is 0.

    Args:
        parallelism: ``"experience"`` or ``"gradient"``.
        cores: Number of cores. Default: :func:`usable_cores`.
        mode: ``"sync"`` or ``"async"``.

    >>> recommended_num_workers("experience", cores=6), recommended_num_workers("gradient", cores=6)
    (4, 6)
    >>> recommended_num_workers(cores=2), recommended_num_workers(cores=2, mode="sync")
    (1, 2)
    """
    cores = usable_cores() if cores is None else cores
    if not system.HAS_PROCESSES:
        return 0
    if parallelism == "gradient":
        return cores
    least = 1 if mode == "async" else 0
    return max(1, cores - max(least, cores // 3))


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that limit the threads of numerical libraries."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


class Learner(NamedTuple):
    """One of several processes of data-parallel training, as ``torchrun`` starts them.

    Args:
        rank: Index of the process, from 0.
        world_size: Number of processes.
        local_world_size: Number of processes on this machine.
    """

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1


LONE_LEARNER = Learner()


def this_learner() -> Learner:
    """Return this process's place among the learners, from ``torch.distributed`` or from torchrun's environment."""
    local = _number("LOCAL_WORLD_SIZE")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        world_size = distributed.get_world_size()
        return Learner(distributed.get_rank(), world_size, local or world_size)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        world_size = _number("WORLD_SIZE")
        return Learner(_number("RANK"), world_size, local or world_size)
    return Learner()


def own_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of this learner's own file, such as ``run-rank1.json`` for ``run.json``."""
    rank, whole = this_learner().rank, Path(path)
    return whole.with_stem(f"{whole.stem}-rank{rank}") if rank else whole


def _number(variable: str) -> int:
    text = os.environ.get(variable, "0")
    if not text.isdecimal():
        raise ConfigurationError(f"the environment variable {variable} must be a number, got {text!r}. Unset it.")
    return int(text)


CoreSets = tuple[tuple[int, ...], ...]


def own_cores(workers: int, threads: int = 1) -> CoreSets | None:
    """Return the cores of each worker of this process, or ``None`` if each may use all, see :func:`core_sets`.

    Args:
        workers: Number of workers.
        threads: Number of threads of each worker.
    """
    nodes = [node for node in system.numa_nodes(system.usable_core_numbers()) if len(node) >= threads]
    return core_sets(nodes, workers, this_learner())


def core_sets(nodes: Sequence[Sequence[int]], workers: int, learner: Learner = LONE_LEARNER) -> CoreSets | None:
    """Return the cores of each worker, or ``None`` if each may use all.

    If cores are on several NUMA nodes, each worker gets the cores of one node, so its memory stays on that node. The
    workers of all learners on the machine are distributed among the nodes by their numbers of cores. A worker never
    gets a core for itself: another process on that core would slow every step down.

    Args:
        nodes: Usable cores of each NUMA node.
        workers: Number of workers of this learner.
        learner: This learner.

    >>> core_sets([range(2)], workers=2), core_sets([[0, 1], [2, 3]], workers=3)
    (None, ((0, 1), (0, 1), (2, 3)))
    """
    rank, _, local = learner
    total = workers * local
    if len(nodes) < 2 or total < len(nodes):
        return None
    of_cores = [tuple(node) for node in nodes for _ in node]
    first = rank % local * workers
    return tuple(of_cores[worker * len(of_cores) // total] for worker in range(first, first + workers))
