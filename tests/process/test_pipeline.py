"""Check that the off-policy pipeline keeps the ratio of samples to inserts within bounds and loses no rollout."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
from envs import Plain, ledgers
from policies import zeros

from parenv import AsyncWorkerPool, ConfigurationError, Stop
from parenv.learning import RateLimiter, pipeline
from parenv.testing import check_ledger


def ledger_pool(num_workers: int, **more: Any) -> AsyncWorkerPool:
    factories = ledgers(4)
    return AsyncWorkerPool(factories, zeros, num_workers=num_workers, rollout_length=8, **more)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("samples_per_insert", [0.5, 4.0])
def test_samples_per_insert_stay_within_the_buffer_and_nothing_is_lost(
    num_workers: int, samples_per_insert: float
) -> None:
    expected: dict[int, tuple[int, ...]] = {}
    limiter = RateLimiter(samples_per_insert, min_size_to_sample=100, error_buffer=300)
    inserted = sampled = 0
    with ledger_pool(num_workers) as pool:
        for rollout in pipeline(pool, limiter, 32, Stop(env_steps=4000)):
            if rollout is not None:
                check_ledger(rollout, expected)
                inserted += rollout.num_steps
            else:
                assert inserted >= 100
                sampled += 32
            if inserted >= 100:
                assert abs((inserted - 100) * samples_per_insert - sampled) <= 300
    assert (limiter.inserts, limiter.samples) == (inserted, sampled)
    assert inserted >= 4000
    assert limiter.ratio == pytest.approx(samples_per_insert, rel=0.1, abs=300 / inserted)


def test_sizes_that_could_deadlock_are_refused() -> None:
    limiter = RateLimiter(8.0, min_size_to_sample=10, error_buffer=20)
    with ledger_pool(1) as pool, pytest.raises(ConfigurationError, match="error_buffer"):
        next(pipeline(pool, limiter, 32))


def test_a_stream_that_does_not_wait_yields_none_if_no_rollout_is_ready(tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    waits = False

    def wait_until_written(env: Any) -> None:
        if env.steps == 2:
            fifo.read_text()

    make = functools.partial(Plain, on_step=wait_until_written)
    with AsyncWorkerPool(make, zeros, num_workers=1, rollout_length=1, prefetch=0) as pool:
        stream = pool.rollouts(wait=lambda: waits)
        while next(stream) is None:
            pass
        for _ in range(100):
            assert next(stream) is None
        fifo.write_text("")
        waits = True
        assert next(stream) is not None
