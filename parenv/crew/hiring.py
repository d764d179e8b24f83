"""What worker processes on this machine get when they are started."""

from __future__ import annotations

from collections.abc import Callable

from parenv.options import WorkerOptions
from parenv.placement.base import Launch


def local_launch(entry: str, job: bytes, options: WorkerOptions, torch: bool = False) -> Callable[[int], Launch]:
    """A function that makes the launch from the descriptor of the shared memory.

    Args:
        entry: ``module:function`` that a worker runs.
        job: pickled.
        options: the user's.
        torch: whether workers need torch even though the job does not mention it.
    """
    with_torch = ("torch",) if torch or b"torch" in job else ()
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {}
    return lambda memory_fd: Launch(
        memory_fd=memory_fd,
        job=job,
        preload=(entry.partition(":")[0], *with_torch, *options.preload),
        environment={**hidden, **options.environment},
        threads=options.threads,
    )
