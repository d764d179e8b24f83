"""What worker processes get when they are started, and where those on other machines join."""

from __future__ import annotations

from collections.abc import Callable

from parenv.memory.weights import WeightsMap
from parenv.options import RemotePlacement, WorkerOptions
from parenv.placement.base import Launch
from parenv.placement.remote import HostsPlacement
from parenv.transport.curve import HostListener
from parenv.transport.keys import AllowList, read_driver_keys


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


def remote_placement(entry: str, options: RemotePlacement, weights: WeightsMap | None) -> HostsPlacement:
    """Listen for hosts.

    Args:
        entry: ``module:function`` that a worker runs.
        options: the user's.
        weights: the policy's, or ``None``.

    Raises:
        ConfigurationError: a key cannot be read, or nobody can listen at that address.
    """
    listener = HostListener(
        options.listen,
        read_driver_keys(options.key),
        AllowList(options.hosts),
        max_message_bytes=options.max_message_bytes,
        max_connections=options.max_connections,
        silence_s=options.silence_s,
    )
    return HostsPlacement(
        entry,
        listener,
        num_local=options.num_local,
        weights=weights,
        encoding=options.weights,
        max_message_bytes=options.max_message_bytes,
    )
