"""How many cores this process may use, and how many workers suit them."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from parenv.errors import ConfigurationError
from parenv.options import Parallelism


def usable_cores() -> int:
    """Cores that this process may use: CPU affinity and the container's CPU limit respected, at least 1."""
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), _container_limit())))


def recommended_num_workers(parallelism: Parallelism = "experience", cores: int | None = None) -> int:
    """Workers that suit this machine.

    Experience parallelism leaves a third of the cores, at least one, to the learner; gradient parallelism, where
    the workers do the learning, uses all.

    Args:
        parallelism: ``"experience"`` or ``"gradient"``.
        cores: instead of what this machine has.

    >>> recommended_num_workers("experience", cores=6), recommended_num_workers("gradient", cores=6)
    (4, 6)
    """
    cores = usable_cores() if cores is None else cores
    return cores if parallelism == "gradient" else max(1, cores - max(1, cores // 3))


class Learner(NamedTuple):
    """One of several processes that learn together, as ``torchrun`` starts them.

    Args:
        rank: which, from 0.
        world_size: how many there are.
        local_world_size: how many of them are on this machine.
    """

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1


def this_learner() -> Learner:
    """Which learner this process is: by ``torch.distributed`` where it is initialised, or by torchrun's environment."""
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
    """Where this learner writes, if every learner is told to write here: ``run-rank1.json`` for ``run.json``, say."""
    rank, whole = this_learner().rank, Path(path)
    return whole.with_stem(f"{whole.stem}-rank{rank}") if rank else whole


def _number(variable: str) -> int:
    text = os.environ.get(variable, "0")
    if not text.isdecimal():
        raise ConfigurationError(f"the environment variable {variable} must be a number, as torchrun sets it: {text!r}")
    return int(text)


def own_cores(workers: int) -> tuple[int, ...] | None:
    """A core for each worker to keep to, where there are exactly as many as workers.

    Workers that are woken together for a fraction of a millisecond are otherwise put on one core now and then, one
    behind the other, and the scheduler does not see the other core in time.
    """
    cores = sorted(os.sched_getaffinity(0))
    return tuple(cores) if len(cores) == workers == usable_cores() else None


def _container_limit() -> float:
    """CPU limit of this process's control group and of all above it, v2 or v1; infinite where there is none."""
    groups = control_groups("", "/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    v2 = [limit for group in groups for limit in _limit(group, "cpu.max")]
    groups = control_groups("cpu", "/sys/fs/cgroup/cpu")
    v1 = [limit for group in groups for limit in _limit(group, "cpu.cfs_quota_us", "cpu.cfs_period_us")]
    return min(v2 or v1 or [math.inf])


def control_groups(controller: str, *mounts: str, of: str = "/proc/self/cgroup") -> list[str]:
    """Where the control group of this process and all above it may lie: a limit counts for all below it.

    A container may show its own group as the outermost, and name it as it is called outside.

    Args:
        controller: such as ``"cpu"``; empty for version 2.
        mounts: where groups are shown.
        of: the file in which the kernel says which are this process's.
    """
    paths = {"/"}
    for line in _text(of).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller in controllers.split(",") and path.startswith("/") and ".." not in path:
            mine = PurePosixPath(path)
            paths |= {str(group) for group in (mine, *mine.parents)}
    return [mount + path.rstrip("/") for mount in mounts for path in paths]


def _limit(group: str, *files: str) -> list[float]:
    """Cores, by the quota and the period in these files; nothing where they say neither."""
    try:
        quota, period = " ".join(_text(f"{group}/{file}") for file in files).split()
        return [math.inf if quota == "max" or int(quota) <= 0 else int(quota) / int(period)]
    except ValueError:
        return []


def _text(path: str) -> str:
    """What is in a file; nothing where it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
