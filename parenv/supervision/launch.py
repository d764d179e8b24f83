"""What worker processes get when they are started, and where those on other machines join."""

from __future__ import annotations

from collections.abc import Callable

from parenv.memory.maps import WeightsMap
from parenv.options import Placing, RayPlacement, RemotePlacement, WorkerOptions
from parenv.placement.base import Launch, SteppingPlacement
from parenv.placement.local import LocalPlacement
from parenv.process.launcher import occupy_standard_descriptors


def local_launch(entry: str, job: bytes, options: WorkerOptions, torch: bool = False) -> Callable[[int], Launch]:
    """A function that makes the launch from the descriptor of the shared memory, which is to be made after this call.

    Args:
        entry: ``module:function`` that a worker runs.
        job: pickled.
        options: the user's.
        torch: whether workers need torch even though the job does not mention it.
    """
    occupy_standard_descriptors()
    with_torch = ("torch",) if torch or b"torch" in job else ()
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {}
    return lambda memory_fd: Launch(
        memory_fd=memory_fd,
        job=job,
        preload=(entry.partition(":")[0], *with_torch, *options.preload),
        environment={**hidden, **options.environment},
        threads=options.threads,
    )


def hosts_placement(
    entry: str, placing: RemotePlacement | RayPlacement, weights: WeightsMap | None, options: WorkerOptions
) -> SteppingPlacement:
    """Where hosts join: :func:`parenv.remote.joining.remote_placement`.

    The only way from one machine to many. What it takes is imported when it is wanted.
    """
    from parenv.remote.joining import remote_placement

    return remote_placement(entry, placing, weights, options)


def stepping_placement(entry: str, placing: Placing, options: WorkerOptions) -> SteppingPlacement:
    """Where workers that step run: on this machine, or where hosts join.

    Args:
        entry: ``module:function`` that a worker runs.
        placing: the user's.
        options: the user's.

    Raises:
        ConfigurationError: a key cannot be read, or nobody can listen at that address.
    """
    return LocalPlacement(entry) if placing is None else hosts_placement(entry, placing, None, options)
