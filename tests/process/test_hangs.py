"""A worker that makes no progress is cut, its stack shown, and replaced; one that only takes long is not."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from policies import zeros

from parenv import AsyncWorkerPool, RestartPolicy, WorkerMemoryError, WorkerOptions, WorkerTimeoutError
from parenv.testing import LedgerEnv
from parenv.worker.writing import RolloutWriter

pytestmark = pytest.mark.usefixtures("warnings_are_expected")


def once(flag: Path) -> bool:
    """Whether this is the first time anybody asks."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def hold_the_gil() -> None:
    sum(range(10**13))


def stop_oneself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


HANGS = {"hold the GIL": hold_the_gil, "SIGSTOP": stop_oneself}


class Hangs(LedgerEnv):
    """Hangs once, in its second episode."""

    def __init__(self, env_id: int, flag: Path, where: str, how: Any) -> None:
        super().__init__(env_id)
        self._flag, self._where, self._how = flag, where, how

    def reset(self, **kwargs: Any) -> Any:
        if self._where == "reset" and self._buffer[1] == 1 and once(self._flag):
            self._how()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._where == "step" and self._buffer[1] == 1 and once(self._flag):
            self._how()
        return super().step(action)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("where", "how"), [("step", "hold the GIL"), ("reset", "SIGSTOP")])
def test_a_hung_worker_is_cut_within_its_limit_and_replaced(where: str, how: str, tmp_path: Path) -> None:
    hangs = HANGS[how]
    limits: dict[str, Any] = {"step_timeout_s": 100.0, "reset_timeout_s": 100.0, f"{where}_timeout_s": 2.0}
    factories = [lambda: LedgerEnv(0), lambda: Hangs(1, tmp_path / "flag", where, hangs)]
    with AsyncWorkerPool(
        factories, zeros, num_workers=2, mode="sync", rollout_length=8, workers=WorkerOptions(**limits)
    ) as pool:
        stream = pool.rollouts()
        began = time.monotonic()
        while not next(stream).restarted[1]:
            pass
        assert time.monotonic() - began > 2.0
        (death,) = pool._session._supervisor.deaths[1]
        assert isinstance(death, WorkerTimeoutError)
        assert f"{where}_timeout_s=2 s during env.{where}() of env_id 1" in str(death)
        assert ("no stack" if how == "SIGSTOP" else "in hold_the_gil") in str(death)
        assert not psutil.pid_exists(death.pid)
        assert pool.statistics().worker_restarts == 1


@pytest.mark.more
def test_without_restarts_a_hung_worker_ends_the_pool_with_its_stack(tmp_path: Path) -> None:
    options = WorkerOptions(restart=None, step_timeout_s=2.0)
    pool = AsyncWorkerPool(
        [lambda: Hangs(0, tmp_path / "flag", "step", lambda: time.sleep(1000))], zeros, num_workers=1, workers=options
    )
    with pytest.raises(WorkerTimeoutError, match=r"(?s)worker 0 .*=2 s during env\.step\(\).*File .* in step"):
        list(pool.rollouts())
    assert pool.closed


class Slow(LedgerEnv):
    def step(self, action: Any) -> Any:
        time.sleep(0.2)
        return super().step(action)


@pytest.mark.more
def test_many_slow_steps_are_not_a_hung_one_nor_is_a_learner_that_takes_its_time() -> None:
    options = WorkerOptions(restart=None, step_timeout_s=2.0)
    with AsyncWorkerPool(lambda: Slow(0), zeros, num_workers=1, num_envs=6, rollout_length=2, workers=options) as pool:
        stream = pool.rollouts()
        for _ in range(2):
            next(stream)
            time.sleep(2.5)


@pytest.mark.more
def test_a_call_that_hangs_is_an_error_and_the_pool_goes_on() -> None:
    class Called(LedgerEnv):
        def sleep(self) -> None:
            time.sleep(1000)

    factories = [lambda env_id=env_id: Called(env_id) for env_id in range(2)]
    options = WorkerOptions(step_timeout_s=2.0)
    with AsyncWorkerPool(factories, zeros, num_workers=2, mode="sync", rollout_length=4, workers=options) as pool:
        next(pool.rollouts())
        with pytest.raises(WorkerTimeoutError, match=r"(?s)worker 1 .*while calling a method of env_id 1.*in sleep"):
            pool.call("sleep", env_ids=[1])
        assert next(pool.rollouts()).restarted.tolist() == [False, True]


@pytest.mark.soak
def test_a_replacement_that_does_not_get_ready_is_cut_too(tmp_path: Path) -> None:
    class StartsSlowlyOnce(LedgerEnv):
        def __init__(self, env_id: int) -> None:
            super().__init__(env_id)
            if not once(tmp_path / "first") and once(tmp_path / "second"):
                time.sleep(1000)

    options = WorkerOptions(start_timeout_s=6.0, restart=RestartPolicy(backoff_s=1e-3))
    with AsyncWorkerPool(lambda: StartsSlowlyOnce(0), zeros, num_workers=1, rollout_length=4, workers=options) as pool:
        stream = pool.rollouts()
        next(stream)
        os.kill(pool._session.workers.pid(0), signal.SIGKILL)
        while not next(stream).restarted.any():
            pass
        _, hung = pool._session._supervisor.deaths[0]
        assert "start_timeout_s=6" in str(hung)
        assert pool.statistics().worker_restarts == 2


def test_behind_its_last_step_no_worker_is_said_to_be_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    write_ends = RolloutWriter.write_ends

    def write(writer: RolloutWriter, *columns: Any) -> None:
        said.append(pool._session.workers.doing(0))
        write_ends(writer, *columns)

    monkeypatch.setattr(RolloutWriter, "write_ends", write)
    with AsyncWorkerPool(lambda: LedgerEnv(0), zeros, num_workers=0, mode="sync") as pool:
        next(pool.rollouts())
    assert said == ["commit"]


class Hungry(LedgerEnv):
    """Takes a gigabyte once, in its second episode."""

    def __init__(self, env_id: int, flag: Path) -> None:
        super().__init__(env_id)
        self._flag = flag

    def step(self, action: Any) -> Any:
        if self._buffer[1] == 1 and once(self._flag):
            self.much = np.ones(1 << 27)
        return super().step(action)


def test_a_worker_that_reaches_its_limit_of_memory_is_replaced_and_the_cause_named(tmp_path: Path) -> None:
    factories = [lambda: LedgerEnv(0), lambda: Hungry(1, tmp_path / "flag")]
    options = WorkerOptions(max_memory_bytes=300_000_000)
    with AsyncWorkerPool(factories, zeros, num_workers=2, mode="sync", rollout_length=8, workers=options) as pool:
        stream = pool.rollouts()
        while not (rollout := next(stream)).restarted.any():
            pass
        assert rollout.restarted.tolist() == [False, True]
        (death,) = pool._session._supervisor.deaths[1]
        assert isinstance(death, WorkerMemoryError)
        assert isinstance(death, MemoryError)
        assert "worker 1 (env_ids 1) is likely out of memory during env.step()" in str(death)
