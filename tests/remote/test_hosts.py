"""Check that transitions arrive once, and that no process remains, when hosts join, leave, die or are cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from audits import Audit, until
from envs import ledgers
from inside import generation_of, workers_of
from policies import zeros
from sampling import one_in

from parenv import AsyncWorkerPool, Stop, WorkerOptions, WorkerTimeoutError
from parenv.errors import HostLostError, RestartLimitError
from parenv.testing import LedgerEnv

pytestmark = pytest.mark.usefixtures("warnings_are_expected")


@pytest.mark.parametrize("mode", one_in(2, ["sync", "async"]))
def test_when_a_host_is_killed_another_with_room_takes_its_workers(hosts: Any, mode: Any) -> None:
    first, _ = hosts.start(2, 2)
    with AsyncWorkerPool(
        ledgers(6), zeros, num_workers=3, mode=mode, rollout_length=8, placement=hosts.placement()
    ) as pool:
        audit = Audit(pool)
        audit.take(3000)
        first.kill()
        hosts.start(1)
        audit.until(lambda: pool.statistics().worker_restarts and pool.statistics().workers_alive == 3)
        audit.take(3000)
        audit.until(lambda: len(audit.expected) == 6)
        statistics = pool.statistics()
        assert 1 <= statistics.worker_restarts <= 2
        assert statistics.hosts == 2


@pytest.mark.more
def test_a_host_leaves_after_sigterm(hosts: Any) -> None:
    leaving, _ = hosts.start(1, 2)
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, rollout_length=8, placement=hosts.placement()) as pool:
        audit = Audit(pool)
        audit.take(1000)
        leaving.terminate()
        assert leaving.wait(120.0) == 0
        audit.until(lambda: pool.statistics().hosts == 1 and pool.statistics().workers_alive == 2)
        audit.take(1000)
        audit.until(lambda: len(audit.expected) == 2)


@pytest.mark.more
def test_workers_wait_for_a_host_and_continue_when_one_joins(hosts: Any) -> None:
    (host,) = hosts.start(1)
    with AsyncWorkerPool(
        ledgers(2), zeros, num_workers=2, rollout_length=8, placement=hosts.placement(num_local=1)
    ) as pool:
        audit = Audit(pool)
        audit.take(500)
        host.kill()
        audit.until(lambda: pool.statistics().workers_alive == 1)
        generation = generation_of(pool, 1)
        audit.take(500)
        assert workers_of(pool).doing(1) == "waiting for a host"
        hosts.start(1)
        audit.until(lambda: pool.statistics().workers_alive == 2)
        audit.take(500)
        assert generation_of(pool, 1) == generation == 1
        audit.until(lambda: len(audit.expected) == 2)
        lost, (failing,) = pool.statistics().lost_episodes_by_env, pool.statistics().failures
        assert lost in ({}, {1: {"host_lost": 1}})  # The last step that was delivered may have ended the episode.
        assert (failing.worker, failing.reasons) == (1, {"host_lost": 1})


@pytest.mark.more
def test_a_worker_waits_for_a_host_for_as_long_as_none_comes(hosts: Any) -> None:
    (host,) = hosts.start(1)
    options = WorkerOptions(restart=_once())
    with AsyncWorkerPool(
        ledgers(2), zeros, num_workers=2, rollout_length=8, workers=options, placement=hosts.placement(num_local=1)
    ) as pool:
        audit = Audit(pool)
        audit.take(100)
        host.kill()
        # The start timeout must not run while a worker waits for a host, and the wait must not count as a failure.
        watch = pool._session._crew._watch
        watch._options = replace(options, start_timeout_s=0.2)
        audit.until(lambda: pool.statistics().workers_alive == 1)
        waited_enough = time.monotonic() + 2.0
        audit.until(lambda: time.monotonic() > waited_enough)
        watch._options = options
        before = audit.expected.get(1)
        hosts.start(1)
        audit.until(lambda: audit.expected.get(1) != before)
        assert pool.statistics().worker_restarts == 1


@pytest.mark.more
def test_losing_more_hosts_than_restarts_are_allowed_ends_nothing(hosts: Any) -> None:
    with AsyncWorkerPool(
        ledgers(1),
        zeros,
        num_workers=1,
        rollout_length=4,
        workers=WorkerOptions(restart=_once()),
        placement=_started(hosts),
    ) as pool:
        audit = Audit(pool)
        for lost in range(3):
            audit.take(40)
            hosts.processes[-1].kill()
            hosts.start(1)
            audit.until(lambda lost=lost: pool.statistics().worker_restarts > lost)
        audit.take(40)


def _once() -> Any:
    from parenv import RestartPolicy

    return RestartPolicy(max_restarts=1)


def _started(hosts: Any) -> Any:
    hosts.start(1)
    return hosts.placement()


@pytest.mark.more
def test_without_restarts_a_lost_host_is_an_error_that_names_it(hosts: Any) -> None:
    (host,) = hosts.start(1)
    with AsyncWorkerPool(
        ledgers(1), zeros, num_workers=1, workers=WorkerOptions(restart=None), placement=hosts.placement()
    ) as pool:
        next(pool.rollouts())
        host.kill()
        with pytest.raises(HostLostError, match=r"host 'host0'.*is gone: the connection to it was lost"):
            for _ in pool.rollouts(Stop(seconds=120)):
                pass


@pytest.mark.more
def test_a_host_that_was_silent_for_too_long_returns_with_a_new_generation(hosts: Any) -> None:
    (host,) = hosts.start(2)
    with AsyncWorkerPool(
        ledgers(3), zeros, num_workers=3, rollout_length=8, placement=hosts.placement(num_local=1, silence_s=1.0)
    ) as pool:
        audit = Audit(pool)
        audit.take(1000)
        host.send_signal(signal.SIGSTOP)
        audit.until(lambda: pool.statistics().hosts == 0)
        audit.take(100)
        host.send_signal(signal.SIGCONT)
        audit.until(lambda: pool.statistics().workers_alive == 3)
        audit.take(1000)
        audit.until(lambda: len(audit.expected) == 3)
        assert [generation_of(pool, worker) for worker in range(3)] == [0, 1, 1]
    assert host.wait(120.0) == 0


def test_a_pool_without_hosts_names_the_command_to_run_on_a_host(hosts: Any) -> None:
    with pytest.raises(WorkerTimeoutError) as raised:
        AsyncWorkerPool(
            ledgers(1),
            zeros,
            num_workers=1,
            workers=WorkerOptions(start_timeout_s=0.5),
            placement=hosts.placement(),
        )
    assert str(raised.value) == (
        "1 of 1 workers are not ready after 0.5 s: worker 0 (env_ids 0) is at: waiting for a host. "
        f"No host has joined at {hosts.address}. "
        f"Run `parenv worker --connect {hosts.address} --key HOST.key` on each host. "
        "Raise WorkerOptions.start_timeout_s if they only need longer."
    )


@pytest.mark.more
def test_a_pool_that_does_not_fit_on_its_hosts_raises_when_the_start_times_out(hosts: Any) -> None:
    hosts.start(1, patience_s=20.0)
    with pytest.raises(WorkerTimeoutError, match=r"worker [01] .*is at: waiting for a host"):
        AsyncWorkerPool(
            ledgers(2),
            zeros,
            num_workers=2,
            workers=WorkerOptions(start_timeout_s=5.0),
            placement=hosts.placement(),
        )
    # On a busy machine, the host may not have joined by then. It then finds no driver and exits with 1.
    assert hosts.processes[0].wait(120.0) in (0, 1)


@pytest.mark.more
def test_hosts_may_come_before_the_driver_and_after(hosts: Any) -> None:
    hosts.start(1)
    later = threading.Timer(1.0, hosts.start, (1,))
    later.start()
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, rollout_length=8, placement=hosts.placement()) as pool:
        Audit(pool).take(200)
    later.join()


DRIVER = """
import sys, numpy as np, parenv
placement = parenv.hosts.RemotePlacement(sys.argv[1], sys.argv[2] + "/driver.key", sys.argv[2] + "/hosts.pub")
pool = parenv.AsyncWorkerPool("CartPole-v1", lambda o: o[:, 2] > 0, num_workers=2, placement=placement)
for rollout in pool.rollouts():
    print(pool.statistics().workers_alive, flush=True)
"""


@pytest.mark.more
def test_when_the_driver_is_killed_workers_end_at_once_and_the_host_after_its_patience(hosts: Any) -> None:
    # The patience begins before the driver is started.
    (host,) = hosts.start(2, patience_s=20.0)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, hosts.address, str(hosts.keys)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "2\n"
        os.kill(driver.pid, signal.SIGKILL)
        until(lambda: len(hosts.alive()) <= 2)
        assert host.wait(120.0) == 1
        assert "no driver" in host.stderr.read()
    finally:
        driver.kill()
        driver.communicate()


@pytest.mark.more
def test_a_limit_on_restarts_still_holds_for_workers_that_die_by_themselves(hosts: Any) -> None:
    class Dying(LedgerEnv):
        def step(self, action: Any) -> Any:
            os._exit(3)

    hosts.start(1)
    with (
        AsyncWorkerPool(
            [lambda: Dying(0)],
            zeros,
            num_workers=1,
            workers=WorkerOptions(restart=_once()),
            placement=hosts.placement(),
        ) as pool,
        pytest.raises(RestartLimitError, match="exited with code 3"),
    ):
        next(pool.rollouts())
