"""Number of cores that this process may use, and number of workers for them."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from parenv.errors import ConfigurationError
from parenv.options import Parallelism


def usable_cores() -> int:
    """Return the number of cores that CPU affinity and the container's CPU limit leave to this process, at least 1."""
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), _container_limit())))


def recommended_num_workers(parallelism: Parallelism = "experience", cores: int | None = None) -> int:
    """Return a number of workers for this machine.

    Experience parallelism leaves a third of the cores, and at least one, to the learner. Gradient parallelism uses all
    cores, because the workers compute the gradients.

    Args:
        parallelism: ``"experience"`` or ``"gradient"``.
        cores: Number of cores. Default: :func:`usable_cores`.

    >>> recommended_num_workers("experience", cores=6), recommended_num_workers("gradient", cores=6)
    (4, 6)
    """
    cores = usable_cores() if cores is None else cores
    return cores if parallelism == "gradient" else max(1, cores - max(1, cores // 3))


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
        raise ConfigurationError(f"the environment variable {variable} must be a number, got {text!r}. Unset it")
    return int(text)


def own_cores(workers: int) -> tuple[int, ...] | None:
    """Return a core for each worker if there are exactly as many cores as workers, else ``None``.

    Without this the scheduler sometimes puts two workers on one core, because they wake at the same time and run for
    less than a millisecond.
    """
    cores = sorted(os.sched_getaffinity(0))
    return tuple(cores) if len(cores) == workers == usable_cores() else None


def _container_limit() -> float:
    """Return the lowest CPU limit of this process's control groups (v2 or v1), in cores, or infinity."""
    groups = control_groups("", "/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    v2 = [limit for group in groups for limit in _limit(group, "cpu.max")]
    groups = control_groups("cpu", "/sys/fs/cgroup/cpu")
    v1 = [limit for group in groups for limit in _limit(group, "cpu.cfs_quota_us", "cpu.cfs_period_us")]
    return min(v2 or v1 or [math.inf])


def control_groups(controller: str, *mounts: str, of: str = "/proc/self/cgroup") -> list[str]:
    """Return folders that may hold the limits of this process's control group and of all groups above it.

    A container may show its own group as the root, under the name that the group has outside.

    Args:
        controller: Name of the controller, such as ``"cpu"``; empty for version 2.
        *mounts: Folders at which control groups are mounted.
        of: File with the control groups of a process.
    """
    paths = {"/"}
    for line in _text(of).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller in controllers.split(",") and path.startswith("/") and ".." not in path:
            mine = PurePosixPath(path)
            paths |= {str(group) for group in (mine, *mine.parents)}
    return [mount + path.rstrip("/") for mount in mounts for path in paths]


def _limit(group: str, *files: str) -> list[float]:
    """Return the limit in cores, from the quota and the period in these files, or an empty list."""
    try:
        quota, period = " ".join(_text(f"{group}/{file}") for file in files).split()
        return [math.inf if quota == "max" or int(quota) <= 0 else int(quota) / int(period)]
    except ValueError:
        return []


def _text(path: str) -> str:
    """Return the text of a file, or an empty text if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
