"""Entry point of this package: the placement of a pool or vector env whose workers are on hosts."""

from __future__ import annotations

from parenv.memory.maps import AnyWeights
from parenv.options import RayPlacement, RemotePlacement, WorkerOptions
from parenv.remote.net.curve import HostListener
from parenv.remote.net.host_keys import AllowList, ephemeral_keys, read_driver_keys
from parenv.remote.placement import HostsPlacement
from parenv.remote.ray import RayHosts

HOST_ENTRY = "parenv.remote.host:serve"


def remote_placement(
    placing: RemotePlacement | RayPlacement, weights: AnyWeights, options: WorkerOptions
) -> HostsPlacement:
    """Listen for hosts, and start those of Ray.

    Args:
        placing: The user's placement.
        weights: Weights of the policy, or ``None``.
        options: The user's options for workers.

    Raises:
        ConfigurationError: A key cannot be read, the address is not available, or Ray refuses the resources.
    """
    hosts = None
    if isinstance(placing, RemotePlacement):
        keys, allowed = read_driver_keys(placing.key), AllowList(placing.hosts)
    else:
        hosts = RayHosts(placing, HOST_ENTRY, options.restart)
        keys, key = ephemeral_keys()
        placing, allowed = RemotePlacement(hosts.listen, key="", hosts=()), AllowList([key.public.decode()])
    listener = HostListener(
        placing.listen,
        keys,
        allowed,
        max_message_bytes=placing.max_message_bytes,
        max_connections=placing.max_connections,
        silence_s=placing.silence_s,
    )
    placement = HostsPlacement(listener, placing, weights, hosts)
    if hosts is not None:
        try:
            hosts.start(listener.address, key)
        except BaseException:
            placement.close(0.0)
            raise
    return placement
