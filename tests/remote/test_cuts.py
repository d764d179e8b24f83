"""Check that every transition arrives once although the network between the driver and its hosts fails."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from audits import Audit
from envs import ledgers
from inside import generation_of, workers_of
from namespaces import DRIVER_ADDRESS, namespaces
from network import Network, why_not
from policies import zeros
from sampling import one_in

from parenv import AsyncWorkerPool, Stop
from parenv.memory.status_slot import WAITING_FOR_A_HOST
from parenv.testing import check_ledger

pytestmark = [
    pytest.mark.usefixtures("warnings_are_expected"),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
SILENCE_S = 1.5


class Run(Audit):
    """Audited pool with one local worker and one on a host behind a network."""

    def __init__(self, pool: AsyncWorkerPool, network: Network) -> None:
        super().__init__(pool)
        self.network, self.by_worker = network, {0: 0, 1: 0}

    def next(self) -> Any:
        rollout = super().next()
        for worker in rollout.env_ids.tolist():  # Each worker has one sub-environment.
            self.by_worker[worker] += 1
        return rollout

    def for_some_time(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > deadline)

    def some_of_the_host(self, rollouts: int = 50) -> None:
        wanted = self.by_worker[1] + rollouts
        self.until(lambda: self.by_worker[1] >= wanted)

    @property
    def generation(self) -> int:
        return generation_of(self.pool, 1)


class Cable:
    """Namespaces that are connected by pairs of veth interfaces, which can only be cut and healed."""

    def __init__(self, names: Sequence[str], address: str) -> None:
        self._names, self.address = names, address
        self._next = 0

    def run(self, host: int, argv: Any, **popen: Any) -> subprocess.Popen[Any]:
        """Start a command in the next unused namespace, or in the last one if all are used."""
        name = self._names[min(self._next, len(self._names) - 1)]
        self._next += 1
        return subprocess.Popen(["ip", "netns", "exec", name, *argv], **popen)

    def cut(self, host: int) -> None:
        subprocess.run(["ip", "link", "set", f"pv{host}d", "down"], check=True)

    def heal(self, host: int) -> None:
        subprocess.run(["ip", "link", "set", f"pv{host}d", "up"], check=True)

    def processes(self, host: int) -> list[str]:
        return subprocess.check_output(["ip", "netns", "pids", self._names[host]], text=True).split()


@contextmanager
def cable(count: int = 1) -> Iterator[Cable]:
    with namespaces(count) as names:
        yield Cable(names, DRIVER_ADDRESS)


@contextmanager
def running(
    hosts: Any, make_network: Callable[[], Any] = Network, silence_s: float = SILENCE_S, **settings: Any
) -> Iterator[Run]:
    envs = ledgers(2)
    with make_network() as network:
        hosts.move_to(network)
        hosts.start(1)
        placement = hosts.placement(num_local=1, silence_s=silence_s)
        more = {"rollout_length": 8, **settings}
        with AsyncWorkerPool(envs, zeros, num_workers=2, placement=placement, **more) as pool:
            run = Run(pool, network)
            run.some_of_the_host()
            yield run
        hosts.end()


@pytest.mark.more
def test_a_cut_that_heals_before_the_limit_is_not_noticed(hosts: Any) -> None:
    with running(hosts, cable, silence_s=12.0) as run:
        run.network.cut(0)
        run.for_some_time(1.0)
        run.network.heal(0)
        run.some_of_the_host()
        assert run.generation == 0
        assert run.pool.statistics().worker_restarts == 0


@pytest.mark.more
def test_after_a_longer_cut_the_host_comes_back_as_new(hosts: Any) -> None:
    with running(hosts, cable) as run:
        run.network.cut(0)
        run.until(lambda: run.pool.statistics().hosts == 0)
        run.until(lambda: len(run.network.processes(0)) == 2)  # The host and its fork server.
        assert run.generation == 1
        run.network.heal(0)
        run.until(lambda: run.pool.statistics().hosts == 1)
        run.some_of_the_host()
        assert run.generation == 1


@pytest.mark.more
def test_a_host_continues_while_another_one_is_cut(hosts: Any) -> None:
    envs = ledgers(2)
    with cable(2) as network:
        hosts.move_to(network)
        hosts.start(1, 1)
        placement = hosts.placement(silence_s=SILENCE_S)
        with AsyncWorkerPool(envs, zeros, num_workers=2, rollout_length=8, placement=placement) as pool:
            run = Run(pool, network)
            run.until(lambda: min(run.by_worker.values()) > 50)
            network.cut(1)
            run.until(lambda: pool.statistics().hosts == 1)
            (lost,) = (worker for worker in range(2) if workers_of(pool).doing(worker) == WAITING_FOR_A_HOST)
            other = 1 - lost
            before = run.by_worker.copy()
            run.until(lambda: run.by_worker[other] > before[other] + 200)
            assert generation_of(pool, other) == 0
            network.heal(1)
            run.until(lambda: run.by_worker[lost] > before[lost] + 50)
            assert (pool.statistics().hosts, pool.statistics().worker_restarts) == (2, 1)
        hosts.end()
    assert len(run.expected) == 2


@pytest.mark.more
@pytest.mark.parametrize("direction", one_in(2, ["to_driver", "from_driver"]))
def test_after_a_cut_of_one_direction_the_host_comes_back(hosts: Any, direction: str) -> None:
    with running(hosts) as run:
        before = run.generation
        run.network.cut(0, direction)
        run.until(lambda: run.pool.statistics().hosts == 0)
        run.for_some_time(2.0 * SILENCE_S)
        run.network.heal(0)
        run.some_of_the_host()
        assert run.generation > before


@pytest.mark.more
def test_a_host_reconnects_after_a_reset(hosts: Any) -> None:
    with running(hosts) as run:
        before = run.generation
        assert run.network.reset(0) >= 1
        run.until(lambda: run.generation > before)
        run.some_of_the_host()


@pytest.mark.more
@pytest.mark.parametrize("trouble", one_in(3, ["delay", "loss", "bandwidth"], first=1))
def test_a_slow_or_lossy_network_loses_no_transition(hosts: Any, trouble: str) -> None:
    with running(hosts, rollout_length=64) as run:
        if trouble == "delay":
            run.network.delay(0, 100.0)
        elif trouble == "loss":
            run.network.loss(0, 5.0)
        else:
            run.network.bandwidth(0, 500.0)
        run.some_of_the_host(10)


@pytest.mark.more
def test_a_host_without_power_is_detected_and_can_be_replaced(hosts: Any) -> None:
    with running(hosts) as run:
        run.network.power_off(0)
        run.until(lambda: run.pool.statistics().hosts == 0)
        run.network.heal(0)
        hosts.start(1)
        run.some_of_the_host()
        assert run.generation >= 1


@pytest.mark.soak
def test_a_synchronous_round_waits_for_the_network(hosts: Any) -> None:
    with running(hosts, cable, mode="sync") as run:
        run.network.cut(0)
        began = time.monotonic()
        for rollout in run.pool.rollouts(Stop(seconds=2.0 * SILENCE_S)):
            check_ledger(rollout, run.expected)
        assert time.monotonic() - began < 4.0 * SILENCE_S
        run.network.heal(0)
        run.until(lambda: run.generation == 1)
        run.some_of_the_host()
