"""Check that a worker that makes no progress is killed and replaced, with its stack in the error."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from envs import Acting, hold_the_gil, once, sleep_long, slow, stop_oneself
from inside import deaths_of, pid_of, workers_of
from policies import zeros

from parenv import AsyncWorkerPool, RestartPolicy, WorkerOptions, WorkerTimeoutError
from parenv.errors import WorkerMemoryError
from parenv.testing import LedgerEnv
from parenv.worker.writing import RolloutWriter

pytestmark = pytest.mark.usefixtures("warnings_are_expected")


HANGS = {"hold the GIL": hold_the_gil, "SIGSTOP": stop_oneself}


def hanging(env_id: int, flag: Path, where: str, how: Callable[[], object]) -> Acting:
    """Return a ledger that hangs once, in its second episode."""

    def hang_once(env: Any) -> None:
        if env.episode == 1 and once(flag):
            how()

    return Acting(env_id, **{f"on_{where}": hang_once})


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("where", "how"), [("step", "hold the GIL"), ("reset", "SIGSTOP")])
def test_a_hung_worker_is_killed_after_its_time_limit_and_replaced(where: str, how: str, tmp_path: Path) -> None:
    hangs = HANGS[how]
    limits: dict[str, Any] = {"step_timeout_s": 100.0, "reset_timeout_s": 100.0, f"{where}_timeout_s": 2.0}
    factories = [lambda: LedgerEnv(0), lambda: hanging(1, tmp_path / "flag", where, hangs)]
    with AsyncWorkerPool(
        factories, zeros, num_workers=2, mode="sync", rollout_length=8, workers=WorkerOptions(**limits)
    ) as pool:
        stream = pool.rollouts()
        began = time.monotonic()
        while not next(stream).restarted[1]:
            pass
        assert time.monotonic() - began > 2.0
        (death,) = deaths_of(pool, 1)
        assert isinstance(death, WorkerTimeoutError)
        assert f"{where}_timeout_s=2 s during env.{where}() of env_id 1" in str(death)
        assert ("stack is not available" if how == "SIGSTOP" else "in hold_the_gil") in str(death)
        assert not psutil.pid_exists(death.pid)
        assert pool.statistics().worker_restarts == 1


@pytest.mark.more
def test_neither_many_slow_steps_nor_a_slow_learner_are_a_hang() -> None:
    options = WorkerOptions(restart=None, step_timeout_s=2.0)
    makers = [lambda: slow(0, 0.2)] * 6
    with AsyncWorkerPool(makers, zeros, num_workers=1, rollout_length=2, workers=options) as pool:
        stream = pool.rollouts()
        for _ in range(2):
            next(stream)
            time.sleep(2.5)


@pytest.mark.more
def test_a_call_that_hangs_is_an_error_and_the_pool_stays_usable() -> None:
    factories = [functools.partial(Acting, env_id) for env_id in range(2)]
    options = WorkerOptions(step_timeout_s=2.0)
    with AsyncWorkerPool(factories, zeros, num_workers=2, mode="sync", rollout_length=4, workers=options) as pool:
        next(pool.rollouts())
        with pytest.raises(WorkerTimeoutError, match=r"(?s)worker 1 .*calling a method of env_id 1.*in sleep_long"):
            pool.call("do", sleep_long, env_ids=[1])
        assert next(pool.rollouts()).restarted.tolist() == [False, True]


@pytest.mark.soak
def test_a_replacement_that_does_not_get_ready_is_replaced_too(tmp_path: Path) -> None:
    def make() -> LedgerEnv:
        if not once(tmp_path / "first") and once(tmp_path / "second"):
            time.sleep(1000)
        return LedgerEnv(0)

    # The time limit must not include the start of the fork server, which imports torch.
    AsyncWorkerPool(lambda: LedgerEnv(0), zeros, num_workers=1).close()
    options = WorkerOptions(start_timeout_s=6.0, restart=RestartPolicy(backoff_s=1e-3))
    with AsyncWorkerPool(make, zeros, num_workers=1, rollout_length=4, workers=options) as pool:
        stream = pool.rollouts()
        next(stream)
        os.kill(pid_of(pool, 0), signal.SIGKILL)
        while not next(stream).restarted.any():
            pass
        _, hung = deaths_of(pool, 0)
        assert "start_timeout_s=6" in str(hung)
        assert pool.statistics().worker_restarts == 2


def test_after_its_last_step_a_worker_is_reported_as_committing(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = []
    write_ends = RolloutWriter.write_ends

    def write(writer: RolloutWriter, *columns: Any) -> None:
        reported.append(workers_of(pool).doing(0))
        write_ends(writer, *columns)

    monkeypatch.setattr(RolloutWriter, "write_ends", write)
    with AsyncWorkerPool(lambda: LedgerEnv(0), zeros, num_workers=0, mode="sync") as pool:
        next(pool.rollouts())
    assert reported == ["commit"]


@pytest.mark.linux  # Only Linux limits the memory of a process.
def test_a_worker_that_reaches_its_memory_limit_is_replaced_with_a_memory_error(tmp_path: Path) -> None:
    def take_a_gigabyte(env: Any) -> None:
        if env.episode == 1 and once(tmp_path / "flag"):
            env.much = np.ones(1 << 27)

    factories = [lambda: LedgerEnv(0), lambda: Acting(1, take_a_gigabyte)]
    options = WorkerOptions(max_memory_bytes=300_000_000)
    with AsyncWorkerPool(factories, zeros, num_workers=2, mode="sync", rollout_length=8, workers=options) as pool:
        stream = pool.rollouts()
        while not (rollout := next(stream)).restarted.any():
            pass
        assert rollout.restarted.tolist() == [False, True]
        (death,) = deaths_of(pool, 1)
        assert isinstance(death, WorkerMemoryError)
        assert isinstance(death, MemoryError)
        assert "worker 1 (env_ids 1) has probably reached max_memory_bytes=" in str(death)
