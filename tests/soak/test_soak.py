"""Check long runs with many faults, transitions and pools for lost transitions and leaks (``make soak``)."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest
from envs import ledgers
from inside import pid_of
from policies import zeros

from parenv import AsyncWorkerPool, ParallelVectorEnv, RestartPolicy, Stop, WorkerDiedError, WorkerOptions
from parenv.process import launcher
from parenv.testing import LedgerEnv, check_ledger

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("warnings_are_expected")]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SECONDS_PER_SCENARIO = 45.0
ALONE = WorkerOptions(restart=None)
OFTEN = WorkerOptions(restart=RestartPolicy(backoff_s=1e-3))


@pytest.fixture
def nemesis(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("nemesis")
    # Pickle by value, as for a script. Otherwise, every worker would import the module, and torch with it.
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)


def test_the_audit_detects_lost_duplicated_and_torn_transitions(nemesis: Any) -> None:
    with AsyncWorkerPool(
        [lambda env_id=env_id: LedgerEnv(env_id, pool_seed=5) for env_id in range(4)],  # type: ignore[misc]
        zeros,
        num_workers=2,
        mode="sync",
        rollout_length=8,
        seed=5,
    ) as pool:
        first, second, third, fourth = (next(pool.rollouts()).copy() for _ in range(4))
    fourth.rewards[3, 2] += 1
    expected: dict[int, tuple[int, ...]] = {}
    found = nemesis.Found()
    wrong = []
    for rollout in (first, third, second, third, fourth):
        before = found.wrong.copy()
        nemesis.audit(rollout, expected, found)
        wrong.append("".join(found.wrong - before))
    assert wrong == ["", "lost", "duplicated", "", "torn"]


def test_a_million_transitions_survive_every_fault_and_nothing_is_left_behind(nemesis: Any) -> None:
    results = nemesis.run(SECONDS_PER_SCENARIO)
    print(nemesis.table(results))
    for name, result in results.items():
        assert (result["lost"], result["duplicated"], result["torn"], result["residue"]) == (0, 0, 0, []), name
        assert result["deaths"] > 0, name
        assert 0 < result["recoveries"] <= result["deaths"], name
    pools = [result["transitions"] for name, result in results.items() if name.startswith("pool")]
    assert sum(pools) >= 1_000_000


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_half_a_million_transitions_arrive_once_and_in_order_while_versions_change(mode: Any) -> None:
    expected: dict[int, tuple[int, ...]] = {}
    audited = 0
    with AsyncWorkerPool(ledgers(32), zeros, num_workers=4, mode=mode, rollout_length=32, prefetch=2) as pool:
        held: list[Any] = []
        for rollout in pool.rollouts(Stop(env_steps=500_000)):
            audited += check_ledger(rollout, expected)
            held = [*held[-random.randrange(12) :], rollout]
            if random.random() < 0.3:
                pool.publish(zeros)
            if random.random() < 0.01:
                pool.evaluate(3)
    assert audited >= 500_000


class SimulatorError(RuntimeError):
    """Exception of an environment on purpose."""


class Breaks(LedgerEnv):
    """LedgerEnv that fails at its fifth step."""

    def __init__(self, env_id: int, breaks: Callable[[], None]) -> None:
        super().__init__(env_id, max_length=99)
        # Otherwise, every segfault prints a stack.
        faulthandler.disable()
        self._breaks, self._steps = breaks, 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 5:
            self._breaks()
        return super().step(action)


def raises() -> None:
    raise SimulatorError("the motor is hot")


def segfaults() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def pool_of(factories: Sequence[Any], number: int, workers: WorkerOptions) -> AsyncWorkerPool:
    mode: Any = ("sync", "async")[number // 2 % 2]
    return AsyncWorkerPool(factories, zeros, num_workers=2, mode=mode, rollout_length=8, workers=workers)


def kill(pool: AsyncWorkerPool, worker: int) -> None:
    pid = pid_of(pool, worker)
    assert pid > 0
    os.kill(pid, signal.SIGKILL)


def killed(number: int) -> None:
    with pool_of(ledgers(4), number, ALONE) as pool:
        stream = pool.rollouts()
        next(stream)
        kill(pool, number % 2)
        with pytest.raises(WorkerDiedError):
            list(stream)


def killed_and_replaced(number: int) -> None:
    with pool_of(ledgers(4), number, OFTEN) as pool:
        stream = pool.rollouts()
        next(stream)
        kill(pool, number % 2)
        while not next(stream).restarted.any():
            pass


def killed_and_closed_at_once(number: int) -> None:
    with pool_of(ledgers(4), number, OFTEN) as pool:
        next(pool.rollouts())
        kill(pool, number % 2)


def raised(number: int) -> None:
    pool = pool_of([lambda: LedgerEnv(0), lambda: Breaks(1, raises)], number, ALONE)
    with pool, pytest.raises(SimulatorError):
        list(pool.rollouts())


def segfaulted(number: int) -> None:
    pool = pool_of([lambda: LedgerEnv(0), lambda: Breaks(1, segfaults)], number, ALONE)
    with pool, pytest.raises(WorkerDiedError, match="SIGSEGV"):
        list(pool.rollouts())


def closed_while_running(number: int) -> None:
    with pool_of(ledgers(4), number, OFTEN) as pool:
        next(pool.rollouts())


def vector_env_killed_and_replaced(number: int) -> None:
    with contextlib.closing(ParallelVectorEnv(ledgers(4), num_workers=2, on_worker_death="restart")) as envs:
        envs.reset()
        session: Any = envs._session
        pid = session.backend.workers.pid(number % 2)
        assert pid > 0
        os.kill(pid, signal.SIGKILL)
        while "worker_restarted" not in envs.step(np.zeros(4, np.int64))[4]:
            pass


CYCLES = (
    killed, killed_and_replaced, killed_and_closed_at_once, raised, segfaulted, closed_while_running,
    vector_env_killed_and_replaced,
)  # fmt: skip


def processes() -> dict[str, psutil.Process]:
    """Return this process and its fork servers, by name."""
    helpers = (psutil.Process(fork_server._process.pid) for fork_server in launcher._fork_servers.values())
    return {"driver": psutil.Process(), **{f"helper {number}": helper for number, helper in enumerate(helpers)}}


def held_now() -> dict[str, list[int]]:
    """Return the numbers of descriptors, threads and children of each process.

    Wait a moment for children of the fork servers that are about to exit.
    """
    gc.collect()
    deadline = time.monotonic() + 3
    while len(psutil.Process().children(recursive=True)) >= len(processes()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return {
        name: [process.num_fds(), process.num_threads(), len(process.children())]
        for name, process in processes().items()
    }


def memory_now() -> list[int]:
    """Return the resident memory of each process, in bytes."""
    return [process.memory_info().rss for process in processes().values()]


def test_1000_pools_and_envs_that_are_made_broken_and_closed_leave_nothing() -> None:
    for number in range(10 * len(CYCLES)):
        CYCLES[number % len(CYCLES)](number)
    held, threads, memory = held_now(), threading.active_count(), memory_now()
    for number in range(1000):
        CYCLES[number % len(CYCLES)](number)
    # A fork server closes its end of a pool a moment after the pool is closed.
    deadline = time.monotonic() + 60
    while held_now() != held and time.monotonic() < deadline:
        time.sleep(0.02)
    assert held_now() == held
    assert threading.active_count() == threads
    assert max(np.subtract(memory_now(), memory)) < 20e6
