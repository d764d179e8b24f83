"""Check that dead workers are replaced, and that every committed rollout is delivered exactly once."""

from __future__ import annotations

import errno
import functools
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from envs import Acting, kill_oneself, ledgers, once
from inside import deaths_of, kill, workers_of
from policies import zeros
from scripts import printed_by

from parenv import (
    AsyncWorkerPool,
    Policy,
    RestartPolicy,
    Stop,
    TorchPolicy,
    WorkerDiedError,
    WorkerError,
    WorkerOptions,
)
from parenv.placement.base import Received
from parenv.policy.policy import Action
from parenv.process import launcher
from parenv.protocol.messages import Commit
from parenv.statistics import EpisodeStatistics
from parenv.testing import LedgerEnv, check_ledger
from parenv.transport.zeromq import DriverSocket

OFTEN = WorkerOptions(restart=RestartPolicy(max_restarts=1000, backoff_s=1e-3, max_backoff_s=2e-3))


pytestmark = pytest.mark.usefixtures("warnings_are_expected")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("mode", "prefetch"), [("sync", 0), pytest.param("async", 0, marks=pytest.mark.soak), ("async", 2)]
)
def test_under_kills_every_committed_transition_arrives_once_and_in_order(mode: Any, prefetch: int) -> None:
    expected: dict[int, tuple[int, ...]] = {}
    seen: set[int] = set()
    chance = random.Random(prefetch)
    with AsyncWorkerPool(
        ledgers(6), zeros, num_workers=3, mode=mode, rollout_length=8, prefetch=prefetch, workers=OFTEN
    ) as pool:
        kills = 0
        for i, rollout in enumerate(pool.rollouts(Stop(env_steps=12_000))):
            check_ledger(rollout, expected)
            seen |= set(rollout.env_ids[rollout.restarted].tolist())
            if i % 50 == 5:
                kills += kill(pool, chance.randrange(3))
        statistics = pool.statistics()
    assert kills >= 5
    # A signal may go to a worker that is already dead but has not been reaped.
    assert 0 < statistics.worker_restarts <= kills
    assert seen


def test_a_close_awaits_no_message_of_a_worker_that_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    # A close that awaited one would exceed the time limit of the test.
    monkeypatch.setattr("parenv.placement.local.LAST_MESSAGES_S", 1e6)
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, mode="sync", rollout_length=8, workers=OFTEN) as pool:
        for rollout in pool.rollouts():
            if rollout.restarted.any():
                break
            kill(pool, 1)


def test_other_workers_do_not_wait_for_the_one_that_is_replaced() -> None:
    slow = WorkerOptions(restart=RestartPolicy(backoff_s=30.0, max_backoff_s=30.0))
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, rollout_length=8, workers=slow) as pool:
        stream = pool.rollouts()
        for deaths in range(1, 3):
            while not kill(pool, 0):
                next(stream)
            while len(deaths_of(pool, 0)) < deaths:
                next(stream)
        arrived = [next(stream).worker for _ in range(50)]
    # Rollouts that worker 0 had committed before it died may still arrive.
    assert arrived.count(0) <= 2


def test_the_broken_episode_is_marked_and_seeds_are_fresh() -> None:
    with AsyncWorkerPool("CartPole-v1", zeros, num_envs=2, num_workers=2, mode="sync", seed=5) as pool:
        stream = pool.rollouts()
        first = next(stream).copy()
        kill(pool, 1)
        second = next(stream)
        while not second.restarted.any():
            second = next(stream)
        assert second.restarted.tolist() == [False, True]
        assert not (second.observations[0, 1] == first.observations[0, 1]).all()
        third = next(stream)
        assert not third.restarted.any()
        assert (third.observations[0] == second.last_observations).all()


def test_a_call_that_kills_its_worker_is_an_error_and_the_pool_stays_usable() -> None:
    factories = [functools.partial(Acting, env_id) for env_id in range(2)]
    with AsyncWorkerPool(factories, zeros, num_workers=2, mode="sync", rollout_length=4, workers=OFTEN) as pool:
        next(pool.rollouts())
        with pytest.raises(WorkerDiedError, match=r"worker 1 .*SIGKILL while calling a method"):
            pool.call("do", kill_oneself, env_ids=[1])
        assert pool.get_attr("_max_length") == (7, 7)
        expected: dict[int, tuple[int, ...]] = {}
        rollout = next(pool.rollouts())
        assert rollout.restarted.tolist() == [False, True]
        expected[0] = tuple(rollout.observations[0, 0, 1:].tolist())
        check_ledger(rollout, expected)


class DiesOnce(Policy):
    """Policy that kills the first worker process that evaluates with it."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def act(self, observations: Any, carry: Any) -> Action:
        if self.settings.get("deterministic") and once(self.flag):
            kill_oneself()
        return Action(zeros(observations))


def test_an_evaluation_is_repeated_by_the_replacement_of_a_dead_worker(tmp_path: Any) -> None:
    with AsyncWorkerPool(
        ledgers(2), DiesOnce(tmp_path / "flag"), num_workers=2, rollout_length=4, workers=OFTEN
    ) as pool:
        episodes = pool.evaluate(6)
        assert isinstance(episodes, EpisodeStatistics)
        assert len(episodes) == 6
        assert pool.statistics().worker_restarts == 1


class Weight(torch.nn.Module):
    """Module with one weight, which it returns with each action."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.zeros(()))

    def act(self, observations: Any) -> Any:
        batch = len(observations)
        return torch.zeros(batch, dtype=torch.int64), self.value.expand(batch)


def test_gradients_of_the_dead_are_never_applied_and_rounds_complete() -> None:
    policy = TorchPolicy(Weight(), "act", ("actions", "value"))

    def loss_fn(policy: Any, rollout: Any) -> Any:
        return policy.module.value * rollout.rewards.mean()

    with AsyncWorkerPool(
        ledgers(3), policy, num_workers=3, mode="sync", rollout_length=8, workers=OFTEN,
        parallelism="gradient", loss_fn=loss_fn,
    ) as pool:  # fmt: skip
        for i, gradient in enumerate(pool.gradients(Stop(env_steps=24 * 60))):
            assert gradient.workers == (0, 1, 2)
            assert gradient.num_samples == 24
            assert gradient.policy_version == i
            pool.publish(policy)
            if i % 10 == 3:
                kill(pool, i % 3)
        assert pool.statistics().worker_restarts >= 4


def test_messages_of_a_replaced_process_are_refused() -> None:
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, rollout_length=8, workers=OFTEN) as pool:
        stream, workers = pool.rollouts(), workers_of(pool)
        old = workers._processes[0].sender
        while not kill(pool, 0):
            next(stream)
        expected: dict[int, tuple[int, ...]] = {}
        while not check_ledger(rollout := next(stream), expected) or not rollout.restarted.any():
            pass
        refused = workers.refused_messages
        for sequence in range(100):
            workers._arrived.append(Received(old, Commit(sequence)))
        for _ in range(20):
            check_ledger(next(stream), expected)
        assert workers.refused_messages == refused + 100


@pytest.mark.more
@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.soak), "async"])
def test_a_pool_survives_the_death_of_the_fork_server_and_children_of_workers_do_not(mode: Any) -> None:
    class Parent(LedgerEnv):
        def __init__(self, env_id: int) -> None:
            super().__init__(env_id)
            self.child = subprocess.Popen(["sleep", "1000"]).pid

    options = WorkerOptions(environment={"OWN_FORK_SERVER": mode})
    factories = [lambda env_id=env_id: Parent(env_id) for env_id in range(2)]
    with AsyncWorkerPool(factories, zeros, num_workers=2, mode=mode, rollout_length=8, workers=options) as pool:
        stream = pool.rollouts()
        next(stream)
        grandchildren = pool.get_attr("child")
        spec = next(spec for spec in launcher._fork_servers if ("OWN_FORK_SERVER", mode) in spec.environment)
        os.kill(launcher._fork_servers[spec]._process.pid, signal.SIGKILL)
        restarted: set[int] = set()
        while restarted != {0, 1}:
            rollout = next(stream)
            restarted |= set(rollout.env_ids[rollout.restarted].tolist())
        for pid in grandchildren:
            assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.more
def test_a_fork_server_that_dies_while_a_worker_is_being_replaced_ends_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, fork_servers = launcher.Launcher.launch, list[int]()

    def after_a_death(self: launcher.Launcher, *arguments: Any) -> None:
        if not fork_servers:
            fork_servers.append(self._fork_server._process.pid)
            self._fork_server.bury()
        launch(self, *arguments)

    options = WorkerOptions(restart=OFTEN.restart, environment={"OWN_FORK_SERVER": "dies"})
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, rollout_length=8, workers=options) as pool:
        stream = pool.rollouts()
        next(stream)
        monkeypatch.setattr(launcher.Launcher, "launch", after_a_death)
        assert kill(pool, 0)
        restarted: set[int] = set()
        while restarted != {0, 1}:
            rollout = next(stream)
            restarted |= set(rollout.env_ids[rollout.restarted].tolist())
    assert len(fork_servers) == 1


FORK_FAILS = """
import errno, os, pathlib
fork = os.fork
def fork_unless_told():
    try:
        pathlib.Path(PATH).unlink()
    except FileNotFoundError:
        return fork()
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
os.fork = fork_unless_told
"""


@pytest.mark.more
def test_a_fork_that_fails_for_a_moment_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = tmp_path / "fails"
    (tmp_path / "fork_fails.py").write_text(FORK_FAILS.replace("PATH", repr(str(fails))))
    monkeypatch.syspath_prepend(str(tmp_path))
    options = WorkerOptions(restart=OFTEN.restart, preload=("fork_fails",))
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, rollout_length=8, workers=options) as pool:
        stream = pool.rollouts()
        next(stream)
        fails.touch()
        assert kill(pool, 1)
        while not next(stream).restarted.any():
            pass
        deaths = list(deaths_of(pool, 1))
    words = "worker 1 (env_ids 1) could not be started: BlockingIOError: [Errno 11] Resource temporarily unavailable."
    assert [type(death) for death in deaths] == [WorkerDiedError, WorkerError]
    assert str(deaths[1]) == words


def test_a_socket_that_cannot_be_opened_for_a_worker_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opens, fails = DriverSocket.open, [OSError(errno.EMFILE, "Too many open files")]

    def fails_once(self: DriverSocket, *arguments: int) -> int:
        if fails:
            raise fails.pop()
        return opens(self, *arguments)

    with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, rollout_length=8, workers=OFTEN) as pool:
        stream = pool.rollouts()
        next(stream)
        monkeypatch.setattr(DriverSocket, "open", fails_once)
        assert kill(pool, 0)
        while not next(stream).restarted.any():
            pass
        deaths = list(deaths_of(pool, 0))
    assert [type(death) for death in deaths] == [WorkerDiedError, WorkerError]
    assert str(deaths[1]) == "worker 0 (env_ids 0) could not be started: [Errno 24] Too many open files."


def test_a_worker_is_replaced_though_the_working_directory_has_been_removed() -> None:
    script = """
import logging, os, signal, tempfile
import numpy as np
from parenv import AsyncWorkerPool
from parenv.testing import LedgerEnv
logging.getLogger("parenv").setLevel(logging.ERROR)
directory = tempfile.mkdtemp()
os.chdir(directory)
policy = lambda observations: np.zeros(len(observations), int)
with AsyncWorkerPool([lambda: LedgerEnv(0)] * 2, policy, num_workers=2, rollout_length=8) as pool:
    rollouts = pool.rollouts()
    next(rollouts)
    os.rmdir(directory)
    os.kill(pool._session.workers.pid(0), signal.SIGKILL)
    while not next(rollouts).restarted.any():
        pass
with AsyncWorkerPool([lambda: LedgerEnv(0)], policy, num_workers=1, rollout_length=8) as pool:
    next(pool.rollouts())
print("replaced")
"""
    assert printed_by(script) == "replaced\n"


def test_a_pool_that_is_closed_while_a_worker_is_being_replaced_leaves_nothing() -> None:
    for delay_s in (1e-3, 30.0):
        workers = WorkerOptions(restart=RestartPolicy(backoff_s=delay_s, max_backoff_s=delay_s))
        with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, rollout_length=8, workers=workers) as pool:
            stream = pool.rollouts()
            for deaths in (1, 2):
                while not kill(pool, 0):
                    next(stream)
                while len(deaths_of(pool, 0)) < deaths:
                    next(stream)
