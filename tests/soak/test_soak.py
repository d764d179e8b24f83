"""Minutes long: many transitions audited, many pools made, broken and closed. Run by make soak."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode

from parenv import AsyncWorkerPool, ParallelVectorEnv, RestartPolicy, Stop, WorkerDiedError, WorkerError, WorkerOptions
from parenv.testing import LedgerEnv, check_ledger
from parenv.testing.ledger import episode_length, ledger_reward

pytestmark = pytest.mark.soak


def zeros(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


def ledgers(count: int) -> list[Any]:
    return [lambda env_id=env_id: LedgerEnv(env_id) for env_id in range(count)]


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


def test_pools_that_are_made_broken_and_closed_300_times_leave_nothing() -> None:
    driver = psutil.Process()

    def cycle(number: int) -> None:
        alone = WorkerOptions(restart=None)
        with AsyncWorkerPool(ledgers(4), zeros, num_workers=2, rollout_length=8, workers=alone) as pool:
            stream = pool.rollouts()
            next(stream)
            if number % 3 == 0:
                crew = pool._session.crew
                os.kill(crew._placement.pid(crew._senders[number % 2]), signal.SIGKILL)
                with pytest.raises((WorkerDiedError, WorkerError)):
                    list(stream)

    for number in range(30):
        cycle(number)
    descriptors, memory = driver.num_fds(), driver.memory_info().rss
    for number in range(300):
        cycle(number)
    assert driver.num_fds() <= descriptors
    assert driver.memory_info().rss - memory < 20e6


def killer(envs: ParallelVectorEnv, seconds: float) -> threading.Thread:
    """Kills a random worker now and then, whatever it is doing."""
    crew: Any = envs._session.team._crew  # type: ignore[attr-defined]

    def run() -> None:
        rng = random.Random(0)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(rng.expovariate(4.0))
            pid = crew.pid(rng.randrange(len(crew.shares)))
            if pid > 0:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("how", ["step", "send and recv"])
def test_a_vector_env_whose_workers_are_killed_all_the_time_loses_and_invents_nothing(how: str) -> None:
    envs = ParallelVectorEnv(
        ledgers(12),
        num_workers=3,
        batch_size=4,
        autoreset_mode=AutoresetMode.SAME_STEP,
        on_worker_death="restart",
    )
    restarts = audited = 0
    with contextlib.closing(envs):
        last, _ = envs.reset()
        actions, everybody = np.zeros(12, np.int64), np.arange(12)
        thread = killer(envs, 20.0)
        if how != "step":
            envs.send(actions)
        while thread.is_alive():
            results = envs.step(actions) if how == "step" else envs.recv()
            observations, rewards, terminated, truncated, infos = results
            rows = infos.get("env_id", everybody)
            restarted = infos.get("worker_restarted", np.zeros(len(rows), bool))
            for row, env_id in enumerate(rows.tolist()):
                ended = terminated[row] or truncated[row]
                arrived = infos["final_obs"][row] if ended else observations[row]
                if restarted[row]:
                    assert (arrived == last[env_id]).all()
                    assert rewards[row] == 0
                    assert observations[row].tolist() == [env_id, 0, 0]
                    restarts += 1
                else:
                    _, episode, step = last[env_id].tolist()
                    assert arrived.tolist() == [env_id, episode, step + 1]
                    assert rewards[row] == ledger_reward(env_id, episode, step + 1)
                    assert ended == (step + 1 >= episode_length(env_id, episode, 7))
                    assert observations[row].tolist() == ([env_id, episode + 1, 0] if ended else arrived.tolist())
                audited += 1
            last[rows] = observations
            if how != "step":
                envs.send(actions[: len(rows)], rows)
        thread.join()
    assert restarts > 50
    assert audited > 20_000


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_million_transitions_under_poisson_kills_none_lost_none_twice_none_torn(mode: Any) -> None:
    """One kill per two seconds on average; what a rollout says of restarts is all that the checker knows of them."""
    workers = WorkerOptions(restart=RestartPolicy(max_restarts=10_000, backoff_s=1e-3, max_backoff_s=1e-2))
    expected: dict[int, tuple[int, ...]] = {}
    audited = kills = 0
    restarted: set[int] = set()
    with AsyncWorkerPool(
        ledgers(32), zeros, num_workers=4, mode=mode, rollout_length=32, prefetch=2, workers=workers
    ) as pool:
        next_kill = time.monotonic() + random.expovariate(0.5)
        for rollout in pool.rollouts():
            audited += check_ledger(rollout, expected)
            restarted |= set(rollout.env_ids[rollout.restarted].tolist())
            if time.monotonic() > next_kill:
                next_kill = time.monotonic() + random.expovariate(0.5)
                pid = pool._session.crew.pid(random.randrange(4))
                if pid > 0:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        kills += 1
            if audited >= 1_000_000 and kills >= 10:
                break
        restarts = pool.statistics().worker_restarts
    assert 0 < restarts <= kills
    assert restarted
