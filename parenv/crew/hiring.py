"""What worker processes get when they are started, and where those on other machines join."""

from __future__ import annotations

from collections.abc import Callable

from parenv.memory.weights import WeightsMap
from parenv.options import Placing, RayPlacement, RemotePlacement, WorkerOptions
from parenv.placement.base import Launch, Provider, SteppingPlacement
from parenv.placement.local import LocalPlacement
from parenv.placement.ray import RayHosts
from parenv.placement.remote import HostsPlacement
from parenv.process.launcher import occupy_standard_descriptors
from parenv.transport.curve import HostListener
from parenv.transport.keys import AllowList, DriverKeys, ephemeral_keys, read_driver_keys

HOST_ENTRY = "parenv.host.host:serve"


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


def remote_placement(
    entry: str, placing: RemotePlacement | RayPlacement, weights: WeightsMap | None, options: WorkerOptions
) -> HostsPlacement:
    """Listen for hosts; those of Ray are started as well.

    Args:
        entry: ``module:function`` that a worker runs.
        placing: the user's.
        weights: the policy's, or ``None``.
        options: the user's.

    Raises:
        ConfigurationError: a key cannot be read, nobody can listen at that address, or Ray refuses the resources.
    """
    if isinstance(placing, RemotePlacement):
        return _listening(entry, placing, read_driver_keys(placing.key), AllowList(placing.hosts), weights, None)
    hosts = RayHosts(placing, HOST_ENTRY, options.restart)
    driver, key = ephemeral_keys()
    settings = RemotePlacement(hosts.listen, key="", hosts=())
    placement = _listening(entry, settings, driver, AllowList([key.public.decode()]), weights, hosts)
    try:
        hosts.start(placement.address, key)
    except BaseException:
        placement.close(0.0)
        raise
    return placement


def _listening(
    entry: str,
    placing: RemotePlacement,
    keys: DriverKeys,
    allowed: AllowList,
    weights: WeightsMap | None,
    provider: Provider | None,
) -> HostsPlacement:
    listener = HostListener(
        placing.listen,
        keys,
        allowed,
        max_message_bytes=placing.max_message_bytes,
        max_connections=placing.max_connections,
        silence_s=placing.silence_s,
    )
    return HostsPlacement(
        entry,
        listener,
        num_local=placing.num_local,
        weights=weights,
        encoding=placing.weights,
        max_message_bytes=placing.max_message_bytes,
        silence_s=placing.silence_s,
        provider=provider,
    )


def stepping_placement(entry: str, placing: Placing, options: WorkerOptions) -> SteppingPlacement:
    """Where workers that step run: on this machine, or where hosts join.

    Args:
        entry: ``module:function`` that a worker runs.
        placing: the user's.
        options: the user's.

    Raises:
        ConfigurationError: a key cannot be read, or nobody can listen at that address.
    """
    return LocalPlacement(entry) if placing is None else remote_placement(entry, placing, None, options)
