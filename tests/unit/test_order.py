"""Check that memory fences keep the order of rows and their numbers, on processors that reorder memory accesses too."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from parenv import ParallelVectorEnv
from parenv.memory import order, rendezvous
from parenv.memory.maps import StepBufferMap
from parenv.memory.spaces import Leaf
from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.remote import step_buffers
from parenv.remote.step_buffers import WorkerRows, row_plan
from parenv.testing import LedgerEnv
from parenv.vector import backend

ACTIONS = np.zeros(2, np.int64)


def step_buffer_of(envs: ParallelVectorEnv) -> Any:
    return envs._session._step_buffer


@pytest.fixture
def ledgers() -> list[Any]:
    return [lambda: LedgerEnv(0), lambda: LedgerEnv(1)]


def test_a_worker_puts_a_fence_between_its_rows_and_their_numbers(
    ledgers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = ParallelVectorEnv(ledgers, num_workers=0)
    before, _ = envs.reset()
    seen: list[Any] = []

    def look() -> None:
        step_buffer = step_buffer_of(envs)
        seen.append((step_buffer.observations[0].copy(), (step_buffer.finished < step_buffer.requested).all()))

    monkeypatch.setattr(rendezvous, "fence", look)
    after = envs.step(ACTIONS)[0]
    ((written, unfinished),) = seen
    assert unfinished
    assert (written == after).all()
    assert (before != after).any()
    envs.close()


def test_the_driver_puts_a_fence_between_the_numbers_and_the_rows(
    ledgers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = ParallelVectorEnv(ledgers, num_workers=2)
    envs.reset()
    finished: list[bool] = []

    def look() -> None:
        step_buffer = step_buffer_of(envs)
        finished.append(bool((step_buffer.finished == step_buffer.requested).all()))

    monkeypatch.setattr(backend, "fence", look)
    for _ in range(10):
        finished.clear()
        envs.step(ACTIONS)
        assert finished[-1]
    envs.close()


def test_a_host_puts_a_fence_between_the_numbers_and_the_rows_that_it_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = StepBufferSpec(2, (Leaf((), (3,), "<f4"),), (Leaf((), (), "<i8"),), info_bytes=8)
    memory = bytearray(spec.fields()[1])
    step_buffer = StepBuffer(spec, memory)
    where = StepBufferMap(memory, spec, 0, (2,))
    mine = WorkerRows(memory, row_plan(where, 0))

    def written_late() -> None:
        step_buffer.rewards[:] = 7.0
        step_buffer.finished[:] = 2

    step_buffer.finished[:] = 1
    monkeypatch.setattr(step_buffers, "fence", written_late)
    ((answered, data),) = mine.answers(1 << 20)
    assert answered == [0, 1]
    assert np.frombuffer(data[:16], "<i8").tolist() == [1, 1]
    assert np.full(2, 7.0).tobytes() in bytes(data)


def test_fences_of_many_threads_do_not_wait_for_each_other() -> None:
    threads = [threading.Thread(target=lambda: [order.full_fence() for _ in range(1000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
