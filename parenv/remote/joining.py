"""The door to many machines: a placement where hosts join, and those of Ray."""

from __future__ import annotations

from parenv.memory.maps import AnyWeights
from parenv.options import RayPlacement, RemotePlacement, WorkerOptions
from parenv.remote.net.curve import HostListener
from parenv.remote.net.host_keys import AllowList, DriverKeys, ephemeral_keys, read_driver_keys
from parenv.remote.placement import HostsPlacement
from parenv.remote.ray import RayHosts

HOST_ENTRY = "parenv.remote.host:serve"


def remote_placement(
    entry: str, placing: RemotePlacement | RayPlacement, weights: AnyWeights, options: WorkerOptions
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
    weights: AnyWeights,
    provider: RayHosts | None,
) -> HostsPlacement:
    listener = HostListener(
        placing.listen,
        keys,
        allowed,
        max_message_bytes=placing.max_message_bytes,
        max_connections=placing.max_connections,
        silence_s=placing.silence_s,
    )
    return HostsPlacement(entry, listener, placing, weights, provider)
