"""Check that a pool stays correct and keeps its resources bounded under random calls, kills and stops of workers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from envs import ledgers
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from inside import kill, pid_of
from policies import zeros

from parenv import AsyncWorkerPool, RestartPolicy, Rollout, WorkerError, WorkerOptions
from parenv.process import launcher
from parenv.testing import check_ledger

ENVS, WORKERS, LENGTH = 4, 2, 4
OPTIONS = WorkerOptions(
    preload=(__name__,),
    restart=RestartPolicy(max_restarts=10_000, backoff_s=1e-3, max_backoff_s=2e-3),
    step_timeout_s=2.0,
    reset_timeout_s=2.0,
    close_timeout_s=0.2,
)
# Hypothesis does not shrink failures, because an example takes a second and depends on the timing of signals.
SETTINGS = settings(
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
modes = st.sampled_from(["sync", "async"])
workers = st.integers(0, WORKERS - 1)


def checksum(rollout: Rollout) -> int:
    """Return a checksum of the arrays of a rollout that are in memory to which workers write."""
    parts = (rollout.observations, rollout.rewards, rollout.terminated, rollout.truncated, rollout.last_observations)
    return zlib.crc32(b"".join(np.ascontiguousarray(part).tobytes() for part in (*parts, rollout.restarted)))


def worker_processes() -> int:
    """Return the number of processes that were forked for the pools of this file."""
    pids = [
        fork_server._process.pid
        for spec, fork_server in launcher._fork_servers.items()
        if spec.preload[-1:] == (__name__,)
    ]
    return sum(len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) for pid in pids)


@contextlib.contextmanager
def worker_errors_are_allowed() -> Iterator[None]:
    """Allow ``WorkerError``, which a call raises if its worker dies, because its effect is then unknown."""
    try:
        yield
    except* WorkerError:
        pass


class PoolUnderFire(RuleBasedStateMachine):
    """State machine whose rules use a pool of ledgers and kill, stop and resume its workers."""

    pool: AsyncWorkerPool

    @initialize(mode=modes, prefetch=st.integers(0, 2))
    def start(self, mode: Any, prefetch: int) -> None:
        self.held: list[tuple[Rollout, int]] = []
        self.begin(mode, prefetch)

    def begin(self, mode: Any, prefetch: int) -> None:
        self.pool = AsyncWorkerPool(
            ledgers(ENVS),
            zeros,
            num_workers=WORKERS,
            mode=mode,
            rollout_length=LENGTH,
            prefetch=prefetch,
            workers=OPTIONS,
        )
        self.stream = self.pool.rollouts()
        self.expected: dict[int, tuple[int, int]] = {}
        self.versions: dict[int | None, int] = {}
        self.published = self.delivered = self.restarted_envs = 0
        self.stopped: dict[int, int] = {}
        self.nbytes = self.arena_bytes()

    def arena_bytes(self) -> int:
        return os.fstat(self.pool._session._arena.memory.fd).st_size

    def pid(self, worker: int) -> int:
        return pid_of(self.pool, worker)

    @rule(count=st.integers(1, 12), hoards=st.booleans())
    def take(self, count: int, hoards: bool) -> None:
        for _ in range(count):
            rollout = next(self.stream)
            self.delivered += check_ledger(rollout, self.expected)
            assert self.versions.get(rollout.worker, 0) <= rollout.policy_version <= self.published
            assert rollout.policy_lag == self.published - rollout.policy_version
            self.versions[rollout.worker] = rollout.policy_version
            self.restarted_envs += int(rollout.restarted.sum())
            if hoards:
                self.held.append((rollout, checksum(rollout)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: Any) -> None:
        del self.held[data.draw(st.integers(0, len(self.held) - 1)) :]

    @rule(worker=workers)
    def kill(self, worker: int) -> None:
        if kill(self.pool, worker, signal.SIGKILL):
            self.stopped.pop(worker, None)

    @rule(worker=workers)
    def stop(self, worker: int) -> None:
        if kill(self.pool, worker, signal.SIGSTOP):
            self.stopped[worker] = self.pid(worker)

    @precondition(lambda self: self.stopped)
    @rule(data=st.data())
    def resume(self, data: Any) -> None:
        worker = data.draw(st.sampled_from(sorted(self.stopped)))
        if self.stopped.pop(worker) == self.pid(worker):
            kill(self.pool, worker, signal.SIGCONT)

    @rule()
    def publish(self) -> None:
        self.published += 1
        assert self.pool.publish(zeros) == self.published

    @rule()
    def synchronize(self) -> None:
        assert self.pool.synchronize() == self.published

    @rule(episodes=st.integers(1, 5))
    def evaluate(self, episodes: int) -> None:
        assert len(self.pool.evaluate(episodes)) == episodes

    @rule(env_id=st.integers(0, ENVS - 1))
    def get_attr(self, env_id: int) -> None:
        with worker_errors_are_allowed():
            assert self.pool.get_attr("_max_length", env_ids=[env_id]) == (7,)

    @rule()
    def call(self) -> None:
        with worker_errors_are_allowed():
            assert self.pool.call("get_wrapper_attr", "_max_length") == (7,) * ENVS

    @rule(mode=modes, prefetch=st.integers(0, 2))
    def close_and_open_another_pool(self, mode: Any, prefetch: int) -> None:
        self.pool.close()
        assert worker_processes() == 0
        self.begin(mode, prefetch)

    @invariant()
    def pool_is_open_and_counts_are_right(self) -> None:
        assert not self.pool.closed
        statistics = self.pool.statistics()
        assert statistics.env_steps == self.delivered
        assert statistics.policy_version == self.published
        assert self.restarted_envs <= statistics.worker_restarts * ENVS // WORKERS

    @invariant()
    def held_rollouts_are_unchanged(self) -> None:
        assert all(checksum(rollout) == before for rollout, before in self.held)

    @invariant()
    def processes_and_memory_are_bounded(self) -> None:
        assert worker_processes() <= WORKERS
        assert self.arena_bytes() == self.nbytes

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.pool.close()
            assert worker_processes() == 0
            self.held_rollouts_are_unchanged()


pytestmark = pytest.mark.usefixtures("warnings_are_expected")


@pytest.mark.more
def test_under_random_calls_and_signals_every_transition_arrives_once_and_in_order() -> None:
    run_state_machine_as_test(
        PoolUnderFire, settings=settings(SETTINGS, max_examples=3, stateful_step_count=25, derandomize=True)
    )


@pytest.mark.soak
def test_random_calls_and_signals_for_two_minutes() -> None:
    deadline = time.monotonic() + 110.0
    while time.monotonic() < deadline:
        run_state_machine_as_test(PoolUnderFire, settings=settings(SETTINGS, max_examples=10, stateful_step_count=50))
