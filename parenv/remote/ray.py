"""Worker hosts as Ray actors. Ray places each on a node, and restarts it on another node if that is lost."""

from __future__ import annotations

import logging
import math
import os
import pkgutil
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.errors import ConfigurationError
from parenv.libraries import require
from parenv.options import RayPlacement, RestartPolicy
from parenv.placement.base import KILL_TIMEOUT_S
from parenv.process.restart_limit import RestartLimit

if TYPE_CHECKING:
    from parenv.remote.net.host_keys import HostKeys

_log = logging.getLogger("parenv")


class HostActor:
    """A Ray actor. It runs in the main thread of its process, so that SIGTERM ends it.

    Args:
        entry: ``module:function`` with the arguments of :func:`parenv.remote.host.serve`.
        address: Address of the driver.
        keys: Keys of the host.
        num_workers: Maximum number of workers.
    """

    def __init__(self, entry: str, address: str, keys: HostKeys, num_workers: int) -> None:
        self._entry, self._arguments = entry, (address, keys, num_workers)
        self._node = os.getppid()

    def place(self) -> None:
        """Do nothing. Ray completes this call when it has placed the actor."""

    def run(self) -> None:
        """Serve the driver. It neither returns a value nor raises: the driver would have to unpickle both."""
        try:
            serve = pkgutil.resolve_name(self._entry)
            serve(*self._arguments, is_leaving=self._is_orphan)
        except Exception:
            traceback.print_exc()
        if self._is_orphan():
            os._exit(1)

    def _is_orphan(self) -> bool:
        """Return whether Ray's process on this node has ended. Ray has then restarted this actor on another node.

        If a lost node comes back, Ray does not end the actors on it.
        """
        return os.getppid() != self._node


@dataclass
class _Host:
    """State of an actor.

    Args:
        actor: Handle of Ray.
        placed: Reference that is done when the actor has been placed for the first time.
        ended: Reference that is done when the actor has ended.
        again_at: Monotonic time at which another actor replaces it; ``None`` while it serves.
    """

    actor: Any
    placed: Any
    ended: Any
    again_at: float | None = None


class RayHosts:
    """The worker hosts of a pool on a Ray cluster.

    Results of actors are never fetched, so that nothing of them is unpickled here.

    Args:
        options: The user's placement.
        entry: ``module:function`` that a host runs, see :class:`HostActor`.
        restart: Limit on the replacements of hosts that end by themselves; ``None``: none is replaced. If a host is
            killed or its node is lost, Ray restarts it without a limit.

    Attributes:
        listen: Address for the driver to listen at, with any port.

    Raises:
        ConfigurationError: Ray is not installed.
    """

    def __init__(self, options: RayPlacement, entry: str, restart: RestartPolicy | None) -> None:
        self._ray = ray = require("ray", "RayPlacement", "ray")
        self._options, self._entry = options, entry
        self._address = ""
        self._keys: HostKeys | None = None
        self._hosts: list[_Host] = []
        self._restart_limit = RestartLimit(restart, len(options.shares))
        if not ray.is_initialized():
            ray.init()
        self._session = self._current_session()
        ip = ray.util.get_node_ip_address()
        self.listen = f"tcp://[{ip}]:*" if ":" in ip else f"tcp://{ip}:*"

    def start(self, address: str, keys: HostKeys) -> None:
        """Start the hosts. Returns at once.

        Raises:
            ConfigurationError: Ray refuses the resources.
        """
        self._address, self._keys = address, keys
        try:
            for share in self._options.shares:
                self._hosts.append(self._make(share))
        except ValueError as error:
            self.close()
            raise ConfigurationError(
                f"RayPlacement.resources must be accepted by Ray, got {self._options.resources}: {error}"
            ) from error

    def tend(self) -> None:
        """Replace hosts that have ended. Call at intervals.

        A host ends if it does not find the driver, if the driver refuses it, or if it cannot run.
        """
        if self._is_lost():
            return
        now = time.monotonic()
        for i in self._done([host.ended for host in self._hosts]):
            host = self._hosts[i]
            if host.again_at is None:
                delay = self._restart_limit.died(i, now)
                host.again_at = math.inf if delay is None else now + delay
                then = "and will not be replaced" if delay is None else "and will be replaced"
                _log.warning("worker host %d of Ray has ended, %s", i, then)
            if now >= host.again_at:
                # Ray keeps the process of an actor whose call has ended, and with it the resources of the actor.
                self._ray.kill(host.actor)
                self._hosts[i] = self._make(self._options.shares[i])

    def problems(self, joined: int | None = None) -> list[str]:
        """Describe the obstacles to serving the driver, one sentence each.

        Args:
            joined: Number of hosts that are connected to the driver. Default: unknown.
        """
        if self._is_lost():
            return ["Ray was shut down, which has ended all worker hosts"]
        total, found = len(self._hosts), []
        ended = self._done([host.ended for host in self._hosts])
        waiting = sorted({*range(total)} - {*self._done([host.placed for host in self._hosts])} - {*ended})
        if waiting:
            why = self._obstacle(waiting)
            found.append(f"{len(waiting)} of {total} worker hosts wait for Ray to place them: {why}")
        if ended:
            found.append(
                f"{len(ended)} of {total} worker hosts have ended. See Ray's log of them, and install the same version "
                "of parenv on every node"
            )
        if joined is not None and (missing := total - joined - len(waiting) - len(ended)) > 0:
            found.append(
                f"{missing} of {total} worker hosts have been placed by Ray and are not connected. Their nodes cannot "
                f"reach {self._address}, or are lost and Ray has not found others: {self._obstacle(range(total))}"
            )
        return found

    def close(self, timeout_s: float = 0.0) -> None:
        """Wait for the end of the hosts up to the limit, then kill them. Idempotent.

        Ray itself continues until ``ray.shutdown()`` or the end of this process.
        """
        hosts, self._hosts = self._hosts, []
        if not hosts or self._is_lost():
            return
        placed = self._done([host.placed for host in hosts])
        self._done([hosts[i].ended for i in placed], timeout_s)
        for host in hosts:
            self._ray.kill(host.actor)
        self._done([host.ended for host in hosts], KILL_TIMEOUT_S)

    def _current_session(self) -> tuple[str, str]:
        context = self._ray.get_runtime_context()
        return context.get_node_id(), context.get_job_id()

    def _is_lost(self) -> bool:
        """Return whether Ray was shut down. Another call to Ray would then start it again."""
        return not self._ray.is_initialized() or self._current_session() != self._session

    def _make(self, share: int) -> _Host:
        need = self._options.needed(share)
        kind = self._ray.remote(HostActor).options(
            num_cpus=need.pop("CPU", 0.0),
            num_gpus=need.pop("GPU", 0.0),
            memory=int(need.pop("memory", 0.0)),
            resources=need,
            scheduling_strategy="SPREAD",
            max_restarts=-1,
            max_task_retries=-1,
        )
        actor = kind.remote(self._entry, self._address, self._keys, share)
        return _Host(actor, actor.place.remote(), actor.run.remote())

    def _done(self, references: Sequence[Any], timeout_s: float = 0.0) -> list[int]:
        """Return the indices of the references that are done, after waiting for all up to the limit."""
        if not references:
            return []
        done, _ = self._ray.wait(references, num_returns=len(references), timeout=timeout_s, fetch_local=False)
        return [i for i, reference in enumerate(references) if reference in done]

    def _obstacle(self, hosts: Sequence[int]) -> str:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        free = self._ray.available_resources()
        needs = [self._options.needed(share) for share in dict.fromkeys(self._options.shares[i] for i in hosts)]
        return "; ".join(obstacle(need, nodes, free) for need in needs)


def obstacle(need: Mapping[str, float], nodes: Sequence[Mapping[str, float]], free: Mapping[str, float]) -> str:
    """Describe why resources cannot be placed on a node.

    >>> obstacle({"CPU": 8.0}, [{"CPU": 4.0}, {"CPU": 2.0}], {"CPU": 6.0})
    'each needs CPU: 8, and no node has more than CPU: 4'
    >>> obstacle({"CPU": 2.0, "GPU": 1.0}, [{"CPU": 4.0}, {"CPU": 1.0, "GPU": 1.0}], {})
    'each needs CPU: 2, GPU: 1, and no node has all of these'
    >>> obstacle({"CPU": 2.0}, [{"CPU": 4.0}], {"CPU": 1.5})
    'each needs CPU: 2, and all nodes together have only CPU: 1.5 free'
    """
    most = {name: max((node.get(name, 0.0) for node in nodes), default=0.0) for name in need}
    short = {name: amount for name, amount in most.items() if amount < need[name]}
    if short:
        why = f"no node has more than {_listed(short)}"
    elif not any(all(node.get(name, 0.0) >= amount for name, amount in need.items()) for node in nodes):
        why = "no node has all of these"
    else:
        why = f"all nodes together have only {_listed({name: free.get(name, 0.0) for name in need})} free"
    return f"each needs {_listed(need)}, and {why}"


def _listed(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {amount:g}" for name, amount in resources.items())
