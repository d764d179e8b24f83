"""Minutes long: many transitions audited, many pools made, broken and closed. Run by make soak."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy as np
import psutil
import pytest

from parenv import AsyncWorkerPool, Stop, WorkerDiedError, WorkerError
from parenv.testing import LedgerEnv, check_ledger

pytestmark = pytest.mark.soak


def zeros(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


def ledgers(count: int) -> list[Any]:
    return [lambda env_id=env_id: LedgerEnv(env_id) for env_id in range(count)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_half_a_million_transitions_arrive_once_and_in_order_while_versions_change(mode: Any) -> None:
    expected: dict[int, tuple[int, int]] = {}
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
        with AsyncWorkerPool(ledgers(4), zeros, num_workers=2, rollout_length=8) as pool:
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
