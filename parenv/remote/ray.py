"""Worker hosts as Ray actors: Ray says on which node each runs, and makes it anew elsewhere when that is lost."""

from __future__ import annotations

import logging
import math
import os
import pkgutil
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parenv.errors import ConfigurationError
from parenv.libraries import require
from parenv.options import RayPlacement, RestartPolicy
from parenv.placement.base import KILL_TIMEOUT_S
from parenv.process.restart_limit import RestartLimit

if TYPE_CHECKING:
    from parenv.remote.net.host_keys import HostKeys

_log = logging.getLogger("parenv")


class HostActor:
    """What runs in the process of a Ray actor, in its main thread, so that SIGTERM ends it.

    Args:
        entry: ``module:function``, called as :func:`parenv.remote.host.serve` is.
        address: where the driver listens.
        keys: of the host.
        num_workers: how many workers there is room for.
    """

    def __init__(self, entry: str, address: str, keys: HostKeys, num_workers: int) -> None:
        self._entry, self._arguments = entry, (address, keys, num_workers)
        self._node = os.getppid()

    def place(self) -> None:
        """Done as soon as Ray has placed the actor."""

    def run(self) -> None:
        """Serve the driver. Nothing is returned or raised, for that the driver would have to unpickle."""
        try:
            serve = pkgutil.resolve_name(self._entry)
            serve(*self._arguments, is_leaving=self._is_orphan)
        except Exception:
            traceback.print_exc()
        if self._is_orphan():
            os._exit(1)

    def _is_orphan(self) -> bool:
        """Whether Ray's own process on this node has ended. Ray then has made this actor anew on another node.

        Ray does not end the actors of a node that it had given up and that comes back.
        """
        return os.getppid() != self._node


@dataclass
class _Host:
    """An actor, and what is known of it.

    Args:
        actor: Ray's handle of it.
        placed: done when it has been placed for the first time.
        ended: done when it serves no more.
        again_at: when another is to take its place, on the monotonic clock; ``None`` while it serves.
    """

    actor: Any
    placed: Any
    ended: Any
    again_at: float | None = None


class RayHosts:
    """The worker hosts of a pool on a Ray cluster.

    Nothing that an actor returns is ever looked at, so nothing of it is unpickled here.

    Args:
        options: how many, and what each takes.
        entry: ``module:function`` that a host runs, see :class:`HostActor`.
        restart: how often, and how soon, another takes the place of a host that ends by itself; ``None``: never. Those
            that are killed, or whose node is lost, are Ray's to make anew, without a limit.

    Attributes:
        listen: where the driver is to listen, at any port: its address among the nodes of the cluster.

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
        """Have Ray start the hosts; returns at once.

        Args:
            address: where the driver listens.
            keys: with which every host is to join it.

        Raises:
            ConfigurationError: Ray refuses the resources.
        """
        self._address, self._keys = address, keys
        try:
            for share in self._options.shares:
                self._hosts.append(self._make(share))
        except ValueError as error:
            self.close()
            raise ConfigurationError(f"Ray refuses resources={self._options.resources}: {error}") from error

    def tend(self) -> None:
        """Put another in the place of a host that has ended. Call now and then.

        A host ends when it finds no driver for a while, when the driver refuses it, and when it cannot run at all.
        """
        if self._is_lost():
            return
        now = time.monotonic()
        for i in self._done([host.ended for host in self._hosts]):
            host = self._hosts[i]
            if host.again_at is None:
                delay = self._restart_limit.died(i, now)
                host.again_at = math.inf if delay is None else now + delay
                then = "is not replaced any more" if delay is None else "another takes its place"
                _log.warning("worker host %d of Ray has ended; %s", i, then)
            if now >= host.again_at:
                self._ray.kill(host.actor)
                self._hosts[i] = self._make(self._options.shares[i])

    def problems(self, joined: int | None = None) -> list[str]:
        """Say what keeps hosts from serving the driver, for the message of an error.

        Args:
            joined: how many are connected to the driver, where that is known.

        Returns:
            A sentence for each problem.
        """
        if self._is_lost():
            return ["Ray was shut down, and with it all worker hosts"]
        total, found = len(self._hosts), []
        ended = self._done([host.ended for host in self._hosts])
        waiting = sorted({*range(total)} - {*self._done([host.placed for host in self._hosts])} - {*ended})
        if waiting:
            why = self._obstacle(waiting)
            found.append(f"{len(waiting)} of {total} worker hosts wait for Ray to place them: {why}")
        if ended:
            found.append(
                f"{len(ended)} of {total} worker hosts have ended; Ray's log of them says why (is the same version of "
                "parenv installed on every node?)"
            )
        if joined is not None and (missing := total - joined - len(waiting) - len(ended)) > 0:
            found.append(
                f"{missing} of {total} worker hosts have been placed by Ray and are not connected: their nodes cannot "
                f"reach {self._address}, or are gone and Ray has not found others: {self._obstacle(range(total))}"
            )
        return found

    def close(self, timeout_s: float = 0.0) -> None:
        """End the hosts: by themselves within the limit, after the driver has said goodbye, or by force. Idempotent.

        Ray itself goes on, as after everything else that uses it, until ``ray.shutdown()`` or the end of this process.
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
        """Whether Ray was shut down, and perhaps initialised again. What was asked of it would start another Ray."""
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
        """The indices of those that are done, after waiting until all are, up to the limit."""
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
    """Say what is in the way of placing something on a node.

    Args:
        need: the resources it takes.
        nodes: the resources of each node, in use or not.
        free: the resources of the cluster that are not in use.

    >>> obstacle({"CPU": 8.0}, [{"CPU": 4.0}, {"CPU": 2.0}], {"CPU": 6.0})
    'each needs CPU: 8, and no node has more than CPU: 4'
    >>> obstacle({"CPU": 2.0, "GPU": 1.0}, [{"CPU": 4.0}, {"CPU": 1.0, "GPU": 1.0}], {})
    'each needs CPU: 2, GPU: 1, and no node has all of that'
    >>> obstacle({"CPU": 2.0}, [{"CPU": 4.0}], {"CPU": 1.5})
    'each needs CPU: 2, and what is free on all nodes together is CPU: 1.5'
    """
    most = {name: max((node.get(name, 0.0) for node in nodes), default=0.0) for name in need}
    short = {name: amount for name, amount in most.items() if amount < need[name]}
    if short:
        why = f"no node has more than {_listed(short)}"
    elif not any(all(node.get(name, 0.0) >= amount for name, amount in need.items()) for node in nodes):
        why = "no node has all of that"
    else:
        why = f"what is free on all nodes together is {_listed({name: free.get(name, 0.0) for name in need})}"
    return f"each needs {_listed(need)}, and {why}"


def _listed(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {amount:g}" for name, amount in resources.items())
