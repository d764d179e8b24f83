"""Check that failures are counted in bounded memory, and the reason that each error gives for lost episodes."""

from __future__ import annotations

import pytest

from parenv import SubEnvironmentError, WorkerDiedError, WorkerTimeoutError
from parenv.crew.failures import ended_by, failure_of_worker
from parenv.errors import HostLostError, ProtocolError, WorkerMemoryError
from parenv.experience.endings import ENDINGS, LOST
from parenv.experience.failures import MAX_ERROR, MAX_TRACEBACK, MOST_TEXTS, Failure, FailureLog


def test_endings_are_those_of_environments_and_those_of_lost_episodes() -> None:
    assert ENDINGS[:2] == ("terminated", "truncated")
    assert set(ENDINGS[2:]) == LOST


def test_failures_of_many_environments_are_counted_in_bounded_memory() -> None:
    log = FailureLog()
    for env_id in range(3 * MOST_TEXTS):
        for _ in range(1 + (env_id == 7)):
            log.add(Failure(0, env_id, "environment_error", "step", "x" * 10_000, "y" * 100_000 + "end"))
    rows = log.failures()
    assert len(rows) == 3 * MOST_TEXTS
    assert (rows[0].env_id, rows[0].count, rows[0].traceback) == (7, 2, "")
    kept = [row for row in rows if row.error]
    assert [row.env_id for row in kept] == list(range(2 * MOST_TEXTS, 3 * MOST_TEXTS))
    assert {(len(row.error), len(row.traceback), row.traceback[-3:]) for row in kept} == {
        (MAX_ERROR, MAX_TRACEBACK, "end")
    }


def test_lost_episodes_are_counted_by_reason_and_by_environment() -> None:
    log = FailureLog()
    log.add_lost([(3, "worker_died"), (1, "worker_died"), (3, "step_timeout")])
    assert log.lost_by_reason() == {"worker_died": 2, "step_timeout": 1}
    assert log.lost_by_env() == {1: {"worker_died": 1}, 3: {"worker_died": 1, "step_timeout": 1}}


ABOUT = {"worker": 1, "env_ids": range(2, 4), "pid": 9, "doing": "step of env_id 3"}


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [
        (WorkerDiedError(**ABOUT, signal=9), "worker_died"),
        (WorkerMemoryError("out of memory", **ABOUT), "worker_died"),
        (WorkerTimeoutError("did not answer within 3 s\nits stack", **ABOUT), "step_timeout"),
        (HostLostError("the connection ended", **ABOUT), "host_lost"),
        (ProtocolError("an odd message"), "restarted"),
        (ValueError("no fuel"), "environment_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_the_error_of_a_lost_worker_determines_how_its_episodes_ended(reason: Exception, wanted: str) -> None:
    reason.__cause__ = SubEnvironmentError("here", worker=1, env_id=3, doing="step", remote_traceback="line 7")
    failure = failure_of_worker(1, reason)
    assert ended_by(reason) == failure.ended_by == wanted
    assert (failure.worker, failure.env_id, failure.doing) == (1, 3, "step")
    if isinstance(reason, ValueError):
        assert (failure.error, failure.traceback) == ("ValueError: no fuel", "line 7")
    if isinstance(reason, WorkerTimeoutError):
        assert (failure.error, failure.traceback) == ("did not answer within 3 s", "its stack")
