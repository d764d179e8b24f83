"""Check what a step of a vector env costs in system calls, messages and memory, and how many processes it uses."""

from __future__ import annotations

import contextlib
import tracemalloc
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest
from inside import workers_of

from parenv import ParallelVectorEnv
from parenv.process.cores import usable_cores
from parenv.testing import LedgerEnv
from parenv.vector import connections

STEPS = 200


def make_envs(num_envs: int, **options: Any) -> ParallelVectorEnv:
    return ParallelVectorEnv([lambda i=i: LedgerEnv(i) for i in range(num_envs)], **options)  # type: ignore[misc]


def reads_and_writes(pid: int | str) -> tuple[int, int]:
    """Return the numbers of read and write system calls of a process, or of this thread, which is ``thread-self``."""
    counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counters["syscr"]), int(counters["syscw"])


@pytest.mark.linux  # Without futexes, each worker costs a system call.
@pytest.mark.parametrize("num_workers", [1, 2, 6])
def test_a_step_costs_the_same_system_calls_with_any_number_of_workers(num_workers: int) -> None:
    with contextlib.closing(make_envs(12, num_workers=num_workers)) as envs:
        actions = np.zeros(12, np.int64)
        envs.reset(seed=0)
        polls = _count_polls(envs)
        envs.step(actions)
        workers = workers_of(envs)
        pids = [workers.pid(worker) for worker in range(num_workers)]
        messages, polls[0] = workers.messages, 0
        before = [reads_and_writes(pid) for pid in ("thread-self", *pids)]
        for _ in range(STEPS):
            envs.step(actions)
        after = [reads_and_writes(pid) for pid in ("thread-self", *pids)]
        (reads, writes), *of_workers = [
            (new[0] - old[0], new[1] - old[1]) for old, new in zip(before, after, strict=True)
        ]
        overhead = 3 * (1 + num_workers)  # The counters are read by system calls too.
        # One futex call wakes all workers. The last worker writes to the eventfd of the main process if it sleeps. If
        # two workers finish at the same moment, both may write.
        assert writes == 0
        assert reads <= 2 * STEPS + overhead
        assert polls[0] <= 2 * STEPS
        assert sum(worker_writes for _, worker_writes in of_workers) <= 2 * STEPS
        assert all(worker_reads <= 1 for worker_reads, _ in of_workers)
        assert workers.messages == messages


@pytest.mark.more
def test_without_futexes_each_worker_has_an_eventfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "AVAILABLE", False)
    with contextlib.closing(make_envs(12, num_workers=3)) as envs:
        envs.reset(seed=0)
        for step in range(STEPS):
            observations, *_ = envs.step(np.zeros(12, np.int64))
            assert observations[:, 0].tolist() == list(range(12)), step
        envs.send(np.zeros(3, np.int64), np.array([1, 5, 9]))
        assert sorted(envs.recv(batch_size=3)[-1]["env_id"].tolist()) == [1, 5, 9]


def test_a_step_pickles_nothing_and_memory_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(make_envs(12, num_workers=2)) as envs:
        actions = np.zeros(12, np.int64)
        envs.reset(seed=0)

        def refuse(*args: Any) -> Any:
            raise AssertionError("pickled on the step path")

        monkeypatch.setattr(cloudpickle, "dumps", refuse)
        for _ in range(STEPS):
            envs.step(actions)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(5 * STEPS):
                envs.step(actions)
            assert tracemalloc.get_traced_memory()[0] - before < 4096
        finally:
            tracemalloc.stop()


def test_many_sub_environments_share_few_processes() -> None:
    before = len(psutil.Process().children(recursive=True))
    with contextlib.closing(make_envs(64)) as envs:
        fork_server = 1 if before == 0 else 0
        assert envs.num_workers <= usable_cores()
        assert len(psutil.Process().children(recursive=True)) - before - fork_server == envs.num_workers
        observations, _ = envs.reset()
        assert observations[:, 0].tolist() == list(range(64))


def test_the_main_process_makes_no_environment() -> None:
    made: list[int] = []

    def make() -> LedgerEnv:
        made.append(1)
        return LedgerEnv(0)

    with contextlib.closing(ParallelVectorEnv([make] * 4, num_workers=2)) as envs:
        envs.reset()
        assert not made


def _count_polls(envs: ParallelVectorEnv) -> list[int]:
    inner: Any = envs._session.backend
    count, poll = [0], inner._poller or inner._placement.poller(inner._answers.fileno())

    class Counting:
        def poll(self, timeout: Any) -> Any:
            count[0] += 1
            return poll.poll(timeout)

    inner._poller = Counting()
    return count
