"""Check that the report of a trace has the statistics of the pool and every lost worker and sub-environment."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envs import Acting, Plain
from inside import pid_of
from nets import Biased
from policies import zeros
from sampling import one_in

from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    GradientOptions,
    RestartPolicy,
    Stop,
    WorkerDiedError,
    WorkerOptions,
)
from parenv.bench import report
from parenv.bench.timeline import UNRECORDED, Timeline, read_timeline
from parenv.statistics import PoolStatistics
from parenv.testing import LedgerEnv

SOON = RestartPolicy(max_restarts=1000, backoff_s=1e-3, max_backoff_s=2e-3)


pytestmark = pytest.mark.usefixtures("warnings_are_expected")


def fail(env: Any) -> None:
    """Raise an error at the third step of each episode."""
    if env.steps == 2:
        raise ValueError("the simulator is not there")


def loss(policy: Biased, rollout: Any) -> Any:
    return policy.bias * rollout.rewards.mean()


def check(timeline: Timeline, statistics: PoolStatistics) -> None:
    """Check that a timeline is finished and has the statistics of the pool."""
    assert timeline.is_finished
    assert timeline.total_env_steps == statistics.env_steps
    assert len(timeline.env_steps) == statistics.rollouts
    assert len(timeline.episodes) == statistics.episodes
    assert sum(track.env_steps for track in timeline.workers) == statistics.env_steps
    assert dict(zip(*np.unique(timeline.policy_lag, return_counts=True), strict=True)) == statistics.policy_lag
    assert timeline.episodes.running_mean()[-1:] == pytest.approx([statistics.mean_return])
    for track in timeline.tracks:
        # Times are rounded to an eighth of a µs.
        assert sum(track.fractions().values()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("mode", "num_workers"), one_in(2, ["sync", "async"], [0, 1, 3]))
def test_a_report_has_the_statistics_of_the_pool(mode: Any, num_workers: int, tmp_path: Path) -> None:
    with AsyncWorkerPool("CartPole-v1", zeros, num_envs=6, num_workers=num_workers, mode=mode, seed=1) as pool:
        pool.trace(tmp_path / "trace.json")
        seen = set()
        for rollout in pool.rollouts():
            pool.publish(zeros)
            seen.add(rollout.worker)
            if pool.statistics().env_steps >= 10_000 and (mode == "sync" or len(seen) == pool.num_workers):
                break
        statistics = pool.statistics()
    timeline = read_timeline(tmp_path / "trace.json")
    check(timeline, statistics)
    assert len(timeline.workers) == max(1, num_workers)
    assert timeline.about["in processes"] is (num_workers > 0)
    assert len(timeline.driver.pieces["publish"]) == statistics.rollouts
    assert (timeline.restarts, len(timeline.lost_s), timeline.failures.failures()) == (0, 0, ())
    for field, activity in (("environment_seconds", "env"), ("acting_seconds", "act"), ("waiting_seconds", "wait")):
        spent = sum(float(np.diff(track.pieces[activity]).sum()) for track in timeline.workers)
        # The pool also counts the wait for the first credit, which began before the trace.
        assert spent <= getattr(statistics, field) + 1e-4
        assert activity == "wait" or spent == pytest.approx(getattr(statistics, field), abs=1e-4)
    if num_workers == 3:
        page = report(tmp_path)
        assert page == tmp_path / "report.html"
        assert page.read_text().count("<img ") == 4


@pytest.mark.more
@pytest.mark.parametrize(("mode", "rollout_length"), one_in(2, [("sync", 8), ("async", 8), ("sync", "episode")]))
def test_gradients_are_reported_with_the_learning_on_workers(mode: Any, rollout_length: Any, tmp_path: Path) -> None:
    with AsyncWorkerPool(
        lambda: LedgerEnv(0), Biased(), num_envs=4, num_workers=2, mode=mode, rollout_length=rollout_length,
        parallelism="gradient", loss_fn=loss, gradient=GradientOptions(),
    ) as pool:  # fmt: skip
        pool.trace(tmp_path / "trace.json")
        for _ in pool.gradients(Stop(env_steps=10_000)):
            pool.publish(Biased())
        statistics = pool.statistics()
    timeline = read_timeline(tmp_path / "trace.json")
    check(timeline, statistics)
    assert timeline.about["parallelism"] == "gradient"
    assert all(track.fractions()["learn"] > 0 for track in timeline.tracks)
    if mode == "async":
        assert "gradient parallelism, 2 workers" in report(tmp_path).read_text()


@pytest.mark.more
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_killed_worker_is_in_the_report_with_the_reason(mode: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    workers = WorkerOptions(restart=SOON)
    with AsyncWorkerPool("CartPole-v1", zeros, num_envs=2, num_workers=2, mode=mode, workers=workers) as pool:
        pool.trace(path)
        stream = pool.rollouts()
        next(stream)
        os.kill(pid_of(pool, 1), signal.SIGKILL)
        while not next(stream).restarted.any():
            pass
        statistics = pool.statistics()
    timeline = read_timeline(path)
    check(timeline, statistics)
    assert timeline.restarts == statistics.worker_restarts == 1
    [lost] = timeline.failures.failures()
    assert lost.worker == 1
    assert "was killed by SIGKILL" in lost.error
    [[began, ended]] = timeline.workers[1].pieces["restart"]
    assert began == pytest.approx(timeline.lost_s[0])
    assert ended > began
    assert "restart" not in timeline.workers[0].pieces
    pieces = np.concatenate(list(timeline.workers[1].pieces.values()))
    pieces = pieces[pieces[:, 0].argsort()]
    assert (pieces[1:, 0] >= pieces[:-1, 1] - 1e-6).all()
    page = report(tmp_path).read_text()
    assert "<td>workers restarted</td><td>1</td>" in page
    assert "was killed by SIGKILL" in page


def test_a_run_that_ends_by_a_death_has_it_in_its_report(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with AsyncWorkerPool("CartPole-v1", zeros, num_workers=1, workers=WorkerOptions(restart=None)) as pool:
        pool.trace(path)
        stream = pool.rollouts()
        next(stream)
        os.kill(pid_of(pool, 0), signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="was killed by SIGKILL"):
            deque(stream, maxlen=0)
    timeline = read_timeline(path)
    assert timeline.is_finished
    assert [(lost.worker, lost.count) for lost in timeline.failures.failures()] == [(0, 1)]
    assert timeline.restarts == 0


def test_replaced_sub_environments_are_in_the_report(tmp_path: Path) -> None:
    workers = WorkerOptions(restart=SOON, on_env_error="restart_env")
    makers = [lambda: Acting(0, fail)] * 2
    with AsyncWorkerPool(makers, zeros, num_workers=1, rollout_length=4, workers=workers) as pool:
        pool.trace(tmp_path / "trace.json")
        for _ in pool.rollouts(Stop(env_steps=40)):
            pass
        replaced = pool.statistics().env_restarts
    timeline = read_timeline(tmp_path / "trace.json")
    failures = timeline.failures.failures()
    assert sum(lost.count for lost in failures) == len(timeline.lost_s) == replaced > 0
    assert {lost.who for lost in failures} <= {"env_id 0", "env_id 1"}
    assert {lost.error for lost in failures} == {"ValueError: the simulator is not there"}
    assert timeline.restarts == 0


@pytest.mark.more
def test_a_report_can_be_made_during_a_run_and_a_new_trace_replaces_the_first(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with AsyncWorkerPool("CartPole-v1", zeros, num_envs=2, num_workers=1) as pool:
        pool.trace(path)
        assert "There is no rollout in this trace." in report(path).read_text()
        stream, deadline = pool.rollouts(), time.monotonic() + 120
        while not read_timeline(path).total_env_steps:
            assert time.monotonic() < deadline
            next(stream)
        page = report(path).read_text()
        assert "The trace is not finished" in page
        assert page.count("<img ") == 4
        before = pool.statistics().env_steps
        pool.trace(path)
        evaluated = len(pool.evaluate(2))
        next(stream)
        pool.evaluate(1)
        next(stream)
    timeline = read_timeline(path)
    assert (timeline.is_finished, timeline.about["env_steps"], timeline.total_env_steps) == (True, before, 512)
    fractions = timeline.driver.fractions()
    assert evaluated == 2
    assert fractions["evaluate"] > 0
    assert fractions[UNRECORDED] < 0.5


def test_a_trace_that_cannot_be_written_leaves_the_pool_usable(tmp_path: Path) -> None:
    with AsyncWorkerPool("CartPole-v1", zeros, num_workers=0) as pool:
        pool.trace(tmp_path / "trace.json")
        with pytest.raises(
            ConfigurationError, match=rf"^the trace {tmp_path} cannot be written: Is a directory. Name another"
        ):
            pool.trace(tmp_path)
        inside = tmp_path / "trace.json" / "of" / "this.json"
        with pytest.raises(
            ConfigurationError, match=rf"^the trace {inside} cannot be written: Not a directory. Name another"
        ):
            pool.trace(inside)
        next(pool.rollouts())
        pool.publish(zeros)
    assert json.loads((tmp_path / "trace.json").read_text())


@pytest.mark.more
def test_a_run_without_episodes_has_a_report(tmp_path: Path) -> None:
    with AsyncWorkerPool(Plain, zeros, num_envs=2, num_workers=1, mode="sync", rollout_length=8) as pool:
        pool.trace(tmp_path / "trace.json")
        for _ in pool.rollouts(Stop(env_steps=100)):
            pass
    page = report(tmp_path).read_text()
    assert "No episode ended" in page
    assert page.count("<img ") == 2
