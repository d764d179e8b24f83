"""Check that a worker of leased environments loses no answer and no wake-up, however its threads take turns."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from session_envs import Ledger, Waiting

from parenv import WorkerOptions
from parenv.envs.entry_point import factories_of
from parenv.protocol.frames import Sender
from parenv.worker.job import SessionJob
from parenv.worker.session_task import SessionTask

from .scripted import quiet

NUM_ENVS, RESETS, LIMIT_S = 8, 1000, 60.0


@pytest.fixture
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_take_turns_often")
@pytest.mark.parametrize("env_fn", [Ledger, Waiting], ids=["threads", "coroutines"])
def test_each_request_is_answered_once_and_each_wake_up_brings_an_answer(env_fn: Any) -> None:
    options = WorkerOptions()
    factories = factories_of(env_fn, options, True)
    job = SessionJob(factories=factories, options=options, shares=(NUM_ENVS,), seed=0, at_once=True)
    task: Any = SessionTask(job, Sender(0, 0), quiet(), output=None)  # type: ignore[arg-type]
    rows = {task.answer("session", row, "reset", 0, None): row for row in range(NUM_ENVS)}
    asked, empty = [1] * NUM_ENVS, 0
    while rows:
        assert select.select([task.completed], [], [], LIMIT_S)[0], f"{len(rows)} answers are lost"
        answers = task.play_for(0.0)
        empty += not answers
        for pending, _ in answers:
            row = rows.pop(pending)
            if asked[row] < RESETS:
                asked[row] += 1
                rows[task.answer("session", row, "reset", 0, None)] = row
    assert (asked, empty) == ([RESETS] * NUM_ENVS, 0)
    assert not select.select([task.completed], [], [], 0.0)[0]
    task.close()
