"""Check that lost episodes are listed with their delivered part and the reason, and left out of means."""

from __future__ import annotations

import functools
import math
import os
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envs import Acting, kill_oneself, ledgers, once, sleep_long
from inside import kill
from policies import zeros

from parenv import AsyncWorkerPool, ParallelVectorEnv, RestartPolicy, Stop, WorkerOptions
from parenv.cli.main import main
from parenv.process.fork_server import WORKER_VARIABLE
from parenv.statistics import EpisodeStatistics

SOON = RestartPolicy(max_restarts=1000, backoff_s=1e-3, max_backoff_s=2e-3)

pytestmark = pytest.mark.usefixtures("warnings_are_expected")


class Tally:
    """Sums of the delivered rewards of each sub-environment, which the listed episodes of rollouts must match."""

    def __init__(self) -> None:
        self._open: defaultdict[int, list[float]] = defaultdict(list)
        self.ended_by: Counter[str] = Counter()

    def add(self, rollout: Any) -> None:
        """Check the episodes of a rollout. A reason is not checked if the environment did not end the episode."""
        wanted: list[tuple[int, int, float, str]] = []
        for column, env_id in enumerate(rollout.env_ids.tolist()):
            so_far = self._open[env_id]
            if rollout.restarted[column]:
                wanted += self._end(env_id, "lost")
            for row in range(len(rollout.rewards)):
                so_far.append(float(rollout.rewards[row, column]))
                if rollout.terminated[row, column] or rollout.truncated[row, column]:
                    wanted += self._end(env_id, "terminated" if rollout.terminated[row, column] else "truncated")
        episodes = rollout.episodes
        listed = []
        for i, ended_by in enumerate(episodes.ended_by.tolist()):
            how = ended_by if ended_by in ("terminated", "truncated") else "lost"
            listed.append((int(episodes.env_ids[i]), int(episodes.lengths[i]), float(episodes.returns[i]), how))
            assert episodes.seconds[i] > 0
        assert Counter(listed) == Counter(wanted)
        self.ended_by.update(episodes.ended_by.tolist())

    def _end(self, env_id: int, how: str) -> list[tuple[int, int, float, str]]:
        rewards = list(self._open[env_id])
        self._open[env_id].clear()
        return [(env_id, len(rewards), math.fsum(rewards), how)] if rewards else []


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.more)])
def test_lost_episodes_are_listed_as_delivered_if_workers_are_killed(mode: Any) -> None:
    tally, chance = Tally(), random.Random(3)
    options = WorkerOptions(restart=SOON)
    with AsyncWorkerPool(ledgers(5), zeros, num_workers=3, mode=mode, rollout_length=4, workers=options) as pool:
        for i, rollout in enumerate(pool.rollouts()):
            tally.add(rollout)
            if i % 10 == 5:
                kill(pool, chance.randrange(3))
            if tally.ended_by["worker_died"] > 2:
                break
        statistics = pool.statistics()
    assert set(tally.ended_by) == {"terminated", "truncated", "worker_died"}
    assert statistics.lost_episodes == {"worker_died": tally.ended_by["worker_died"]}
    assert statistics.episodes == tally.ended_by["terminated"] + tally.ended_by["truncated"]


@pytest.mark.more
def test_an_episode_that_was_lost_before_a_dropped_rollout_is_listed_once() -> None:
    # A rollout that is too old is dropped together with its ``restarted`` flags.
    listed, chance = Counter[str](), random.Random(3)
    with AsyncWorkerPool(
        ledgers(4, max_length=40), zeros, num_workers=2, rollout_length=4, max_policy_lag=1, on_stale="drop",
        prefetch=3, workers=WorkerOptions(restart=SOON),
    ) as pool:  # fmt: skip
        for i, rollout in enumerate(pool.rollouts()):
            listed.update(rollout.episodes.ended_by.tolist())
            assert (rollout.episodes.lengths > 0).all()
            pool.publish(zeros)
            if i % 10 == 5:
                kill(pool, chance.randrange(2))
            if listed["worker_died"] > 2 and pool.statistics().dropped_rollouts:
                break
        restarts = pool.statistics().worker_restarts
    assert set(listed) <= {"terminated", "truncated", "worker_died"}
    assert listed["worker_died"] <= 2 * (restarts + 1)


def stuck_once(flag: Path) -> Any:
    """Return a function for :class:`Acting` that hangs once."""

    def act(env: Any) -> None:
        if env.episode == 2 and env.steps == 1 and once(flag):
            sleep_long()

    return act


def fails_once(flag: Path) -> Any:
    """Return a function for :class:`Acting` that raises an exception once."""

    def act(env: Any) -> None:
        if env.episode == 2 and env.steps == 1 and once(flag):
            raise RuntimeError("the motor is hot")

    return act


def collected(options: WorkerOptions, act: Any, wanted: str, **how: Any) -> tuple[Any, Any]:
    """Collect until an episode is lost for the wanted reason. Return the lost episodes and the statistics."""
    tally, makers = Tally(), [functools.partial(Acting, 0, act), *ledgers(3)[1:]]
    with AsyncWorkerPool(
        makers, zeros, **{"num_workers": 3, "mode": "sync"} | how, rollout_length=3, workers=options
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=3000)):
            tally.add(rollout)
            if tally.ended_by[wanted]:
                lost, statistics = rollout.episodes.lost, pool.statistics()
                assert next(pool.rollouts()).episodes.lost.ended_by.tolist() == []
                return lost, statistics
    raise AssertionError(f"no episode was lost, but {tally.ended_by}")


def test_a_step_that_takes_too_long_is_reported_with_its_stack(tmp_path: Path) -> None:
    options = WorkerOptions(restart=SOON, step_timeout_s=3.0)
    lost, statistics = collected(options, stuck_once(tmp_path / "once"), "step_timeout")
    assert (lost.env_ids.tolist(), lost.ended_by.tolist()) == ([0], ["step_timeout"])
    assert statistics.lost_episodes_by_env == {0: {"step_timeout": 1}}
    (failing,) = statistics.failures
    assert (failing.env_id, failing.worker, failing.count, failing.doing) == (0, 0, 1, "step")
    assert failing.reasons == {"step_timeout": 1}
    assert "did not answer within step_timeout_s=3 s" in failing.error
    assert "sleep_long" in failing.traceback


@pytest.mark.parametrize("how", [{}, {"num_workers": 0}, {"num_workers": 1, "mode": "async"}], ids=str)
@pytest.mark.parametrize("on_env_error", ["restart_env", "restart_worker"])
def test_an_exception_is_reported_with_its_traceback(on_env_error: Any, how: Any, tmp_path: Path) -> None:
    if on_env_error == "restart_worker" and how == {"num_workers": 0}:
        pytest.skip("there is no worker to restart")
    options = WorkerOptions(restart=SOON, on_env_error=on_env_error)
    lost, statistics = collected(options, fails_once(tmp_path / "once"), "environment_error", **how)
    assert set(lost.ended_by.tolist()) == {"environment_error"}
    assert 0 in lost.env_ids
    assert statistics.lost_episodes["environment_error"] == len(lost)
    (failing,) = statistics.failures
    assert (failing.env_id, failing.count, failing.doing) == (0, 1, "step")
    assert failing.error == "RuntimeError: the motor is hot"
    assert 'raise RuntimeError("the motor is hot")' in failing.traceback
    assert "failures: 1 of env_id 0" in str(statistics)


def test_the_death_of_a_worker_is_reported_with_its_operation(tmp_path: Path) -> None:
    def act(env: Any) -> None:
        if env.episode == 2 and env.steps == 1 and once(tmp_path / "once"):
            kill_oneself()

    _, statistics = collected(WorkerOptions(restart=SOON), act, "worker_died")
    (failing,) = statistics.failures
    assert (failing.env_id, failing.reasons, failing.doing) == (0, {"worker_died": 1}, "step")
    assert "was killed by SIGKILL during env.step()" in failing.error


def test_step_workers_report_the_reason(tmp_path: Path) -> None:
    def act(env: Any) -> None:
        if env.episode == 2 and env.steps == 1 and once(tmp_path / "once"):
            kill_oneself()

    makers = [functools.partial(Acting, 0, act), *ledgers(4)[1:]]
    options = WorkerOptions(restart=SOON, step_workers=2)
    lost: list[Any] = []
    with AsyncWorkerPool(makers, zeros, num_workers=1, rollout_length=3, workers=options) as pool:
        while not lost:
            found = next(pool.rollouts()).episodes.lost
            lost += zip(found.env_ids.tolist(), found.ended_by.tolist(), found.lengths.tolist(), strict=True)
        assert pool.evaluate(8).lost.ended_by.tolist() == []
    assert {ended_by for _, ended_by, _ in lost} == {"worker_died"}
    assert {env_id for env_id, *_ in lost} <= {0, 1}
    assert (0, "worker_died", 1) in lost


def test_a_report_lists_failures_with_their_counts_and_operations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def die(env: Any) -> None:
        if env.episode == 2 and env.steps == 1 and once(tmp_path / "once"):
            kill_oneself()

    def fail(env: Any) -> None:
        if env.steps == 1 and env.episode < 3:
            raise RuntimeError("the motor is hot")

    options = WorkerOptions(restart=SOON, on_env_error="restart_env")
    makers = [functools.partial(Acting, 0, die), functools.partial(Acting, 1, fail, max_length=3)]
    with AsyncWorkerPool(makers, zeros, num_workers=1, rollout_length=8, workers=options) as pool:
        pool.trace(tmp_path / "run" / "trace.json")
        while pool.statistics().worker_restarts < 1 or pool.statistics().env_restarts < 3:
            next(pool.rollouts())
        wanted = pool.statistics()
    assert main(["report", str(tmp_path / "run"), "--failures"]) == 0
    text = capsys.readouterr().out
    often, died = wanted.failures
    assert (often.env_id, often.reasons) == (1, {"environment_error": wanted.env_restarts})
    assert (died.env_id, died.reasons) == (0, {"worker_died": 1})
    total = sum(wanted.lost_episodes.values())
    assert text.startswith(f"trace.json: {often.count + 1} failures, {total} lost episodes (")
    assert f"env_id 1 (worker 0): {often.count} failures ({often.count} environment_error), " in text
    assert "\n  last during env.step(): RuntimeError: the motor is hot\n    Traceback" in text
    assert '      raise RuntimeError("the motor is hot")\n' in text
    assert "env_id 0 (worker 0): 1 failure (1 worker_died), " in text
    assert "was killed by SIGKILL during env.step()" in text
    assert main(["report", str(tmp_path / "run"), "--failures", "--output", "x.html"]) == 2
    assert not list((tmp_path / "run").glob("*.html"))


def test_episodes_that_an_evaluation_in_place_cuts_are_listed_as_restarted() -> None:
    with AsyncWorkerPool(ledgers(2, max_length=30), zeros, num_workers=1, mode="sync", rollout_length=4) as pool:
        before = next(pool.rollouts())
        cut = set(np.flatnonzero(~(before.terminated[-1] | before.truncated[-1])).tolist())
        pool.evaluate(2, in_place=True)
        lost = next(pool.rollouts()).episodes.lost
    assert set(lost.env_ids.tolist()) == cut
    assert set(lost.ended_by.tolist()) == {"restarted"}


def test_after_load_state_dict_the_episodes_in_progress_are_listed_as_restarted() -> None:
    options: dict[str, Any] = {"num_workers": 1, "mode": "sync", "rollout_length": 4, "seed": 1}
    with AsyncWorkerPool(ledgers(2, max_length=30), zeros, **options) as pool:
        rollout = next(pool.rollouts())
        state = pool.state_dict()
    assert not len(rollout.episodes.lost)
    with AsyncWorkerPool(ledgers(2, max_length=30), zeros, **options) as pool:
        pool.load_state_dict(state)
        following = next(pool.rollouts())
    open_since = [4 - 1 - max(np.flatnonzero(ends), default=-1) for ends in (rollout.terminated | rollout.truncated).T]
    wanted = [(env_id, "restarted", n) for env_id, n in enumerate(open_since) if n]
    lost = following.episodes.lost
    assert following.restarted.all()
    assert list(zip(lost.env_ids.tolist(), lost.ended_by.tolist(), lost.lengths.tolist(), strict=True)) == wanted


def test_means_and_criteria_leave_lost_episodes_out() -> None:
    ended_by = ["terminated", "step_timeout", "truncated"]
    episodes = EpisodeStatistics.of([1.0, 100.0, 3.0], [10, 1000, 30], [0.1] * 3, [0, 1, 2], ended_by)
    assert (episodes.mean_return, episodes.mean_length) == (2.0, 20.0)
    assert episodes.finished.env_ids.tolist() == [0, 2]
    assert episodes.lost.returns.tolist() == [100.0]
    assert math.isnan(episodes.lost.mean_return)
    assert "lost=1" in repr(episodes)
    again = EpisodeStatistics.of_columns(*episodes.columns())
    assert again.ended_by.tolist() == ended_by
    assert EpisodeStatistics.joined([episodes, again]).ended_by.tolist() == ended_by * 2


def test_a_stop_counts_only_episodes_that_environments_ended(tmp_path: Path) -> None:
    def act(env: Any) -> None:
        if env.steps == 1 and env.episode < 20:
            raise RuntimeError("the motor is hot")

    options = WorkerOptions(restart=RestartPolicy(max_restarts=10**6), on_env_error="restart_env")
    makers = [functools.partial(Acting, 0, act), *ledgers(2)[1:]]
    counts: Counter[str] = Counter()
    with AsyncWorkerPool(makers, zeros, num_workers=0, rollout_length=8, workers=options) as pool:
        for rollout in pool.rollouts(Stop(episodes=20)):
            counts.update(rollout.episodes.ended_by.tolist())
        figures = pool.statistics()
    assert counts["environment_error"] > 10
    assert 20 <= counts["terminated"] + counts["truncated"] < 24
    assert figures.episodes == counts["terminated"] + counts["truncated"]
    assert figures.mean_length > 1


@pytest.mark.parametrize("caller_steps", [False, pytest.param(True, marks=pytest.mark.more)])
def test_a_vector_env_reports_and_counts_lost_episodes_with_their_reason(caller_steps: bool, tmp_path: Path) -> None:
    how: dict[str, Any] = {"num_workers": 1 if caller_steps else 2, "caller_steps": caller_steps}
    get_stuck = stuck_once(tmp_path / "once")
    # A forked copy of the worker steps the first environment to measure it.
    act = lambda env: get_stuck(env) if os.environ.get(WORKER_VARIABLE) == str(os.getpid()) else None  # noqa: E731
    makers = [functools.partial(Acting, 0, act), *ledgers(4)[1:]]
    with ParallelVectorEnv(
        makers, on_worker_death="restart", step_timeout_s=3.0, workers=WorkerOptions(restart=SOON), **how
    ) as envs:
        envs.reset()
        infos: dict[str, Any] = {}
        while "worker_restarted" not in infos:
            infos = envs.step(np.zeros(4, np.int64))[4]
        lost = infos["worker_restarted"]
        assert infos["ended_by"][lost].tolist() == ["step_timeout"] * int(lost.sum())
        assert (infos["_ended_by"] == lost).all()
        assert lost[0]
        assert "ended_by" not in envs.step(np.zeros(4, np.int64))[4]
        statistics = envs.statistics()
    assert statistics.lost_episodes == {"step_timeout": int(lost.sum())}
    assert statistics.lost_episodes_by_env[0] == {"step_timeout": 1}
    (failing,) = statistics.failures
    assert (failing.env_id, failing.doing) == (0, "step")
    assert "sleep_long" in failing.traceback
