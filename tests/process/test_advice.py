"""Check ``pool.advice()`` after real runs with a known bottleneck."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from envs import Plain
from policies import zeros

from parenv import AsyncWorkerPool, ConfigurationError, Stop, WorkerOptions
from parenv.advice import Advice, Setting


def sleeping(seconds: float) -> Plain:
    """Return an environment that sleeps in each step."""
    return Plain(on_step=lambda env: time.sleep(seconds))


def burn(processor_seconds: float) -> None:
    """Use CPU time."""
    began = time.process_time()
    while time.process_time() - began < processor_seconds:
        pass


def advice_after(env_fn: Any, seconds_a_step: float, rollouts: int, **options: Any) -> Advice:
    """Return the advice after a loop whose learner uses ``seconds_a_step`` of CPU time per env step."""
    with AsyncWorkerPool(env_fn, zeros, **options) as pool:
        for rollout, _ in zip(pool.rollouts(), range(rollouts), strict=False):
            burn(seconds_a_step * rollout.num_steps)
        return pool.advice()


def limits(advice: Advice) -> dict[str, str | None]:
    """Return the setting that each limit names, by the name of the limit."""
    return {fact.name: fact.setting for fact in advice.limits}


@pytest.mark.more
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_with_a_heavy_learner_and_a_cheap_environment_the_possible_gain_is_small(mode: Any) -> None:
    advice = advice_after("CartPole-v1", 1e-2, 4, num_envs=2, num_workers=1, rollout_length=32, mode=mode)
    assert advice.driver_shares["learning"] > 0.8
    assert advice.largest_gain < 1.25
    assert advice.worker_shares["waiting for the learner"] > 0.5
    waiting = {fact.name: fact.setting for fact in advice.workers}["waiting for the learner"]
    assert waiting == ("mode" if mode == "sync" else None)


@pytest.mark.more
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_limit_of_a_light_learner_and_a_sleeping_environment_is_num_workers(mode: Any) -> None:
    advice = advice_after(lambda: sleeping(4e-3), 1e-6, 6, num_envs=4, num_workers=2, rollout_length=16, mode=mode)
    assert advice.worker_shares["environment"] > 0.5
    assert advice.driver_shares["waiting for workers"] > 0.5
    assert advice.largest_gain > 2
    assert {fact.name: fact.setting for fact in advice.driver}["waiting for workers"] == "num_workers"
    assert limits(advice)["workers sleeping, as for a simulator"] == "num_workers"
    # On a busy machine, a process that has slept waits for a core.
    assert 4e-3 <= advice.workers[0].value < 4e-2, "seconds per env step"


@pytest.mark.more
def test_the_limit_of_stragglers_is_the_mode() -> None:
    factories = [lambda: sleeping(1e-3), lambda: sleeping(1e-3), lambda: sleeping(1e-3), lambda: sleeping(1e-2)]
    advice = advice_after(factories, 1e-6, 6, num_workers=4, rollout_length=16, mode="sync")
    assert limits(advice)["deviation of the time for a rollout"] == "mode"


@pytest.mark.more
def test_the_shares_of_workers_and_of_the_main_process_sum_to_one() -> None:
    advice = advice_after("CartPole-v1", 1e-5, 4, num_envs=4, num_workers=2, mode="sync")
    for shares in (advice.worker_shares, advice.driver_shares):
        assert sum(shares.values()) == pytest.approx(1.0)
        assert all(0 <= share <= 1 for share in shares.values())
    assert advice.worker_shares["environment"] > 0


def test_a_run_without_workers_gets_advice() -> None:
    advice = advice_after(lambda: sleeping(2e-3), 1e-6, 3, num_envs=2, num_workers=0, rollout_length=16, mode="sync")
    assert advice.setting == Setting(0, 2, "sync", "experience", 16)
    assert advice.largest_gain > 2
    assert str(advice).startswith("num_workers=0, num_envs=2, mode='sync', ")


@pytest.mark.more
def test_a_lag_at_its_bound_and_copied_rollouts_are_limits() -> None:
    with AsyncWorkerPool("CartPole-v1", zeros, num_workers=2, rollout_length=4, max_policy_lag=0) as pool:
        kept = [rollout for rollout, _ in zip(pool.rollouts(), range(12), strict=False)]
        found = {fact.name: fact for fact in pool.advice().limits}
        assert found["policy lag at its bound"].value == pool.statistics().policy_lag[0] == len(kept) + 1
        assert found["copied, since the loop keeps others"].value == pool.statistics().copied_rollouts > 0


@pytest.mark.more
def test_the_advice_has_the_setting_of_the_pool() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = torch.nn.Linear(4, 2)

        def forward(self, observations: Any) -> Any:
            return self.scores(observations).argmax(-1)

    options = WorkerOptions(device="cpu:0", step_workers=2)
    with AsyncWorkerPool("CartPole-v1", Net(), num_envs=4, mode="sync", rollout_length=8, workers=options) as pool:
        next(pool.rollouts())
        setting = pool.advice().setting
    assert setting == Setting(1, 4, "sync", "experience", 8, step_workers=2, worker_device="cpu:0")
    whole: Any = {"num_envs": 2, "num_workers": 0, "mode": "sync", "parallelism": "gradient"}
    whole |= {
        "rollout_length": "episode",
        "loss_fn": lambda policy, rollout: policy.scores(rollout.observations).mean(),
    }
    with AsyncWorkerPool("CartPole-v1", Net(), **whole) as pool:
        next(pool.gradients())
        advice = pool.advice()
    assert advice.setting == Setting(0, 2, "sync", "gradient", "episode")
    assert advice.worker_shares["learning"] > 0


def test_there_is_no_advice_before_the_first_rollout() -> None:
    with (
        AsyncWorkerPool("CartPole-v1", zeros, num_workers=0) as pool,
        pytest.raises(ConfigurationError, match=r"^advice\(\) needs at least one rollout. Run the loop"),
    ):
        pool.advice()


def test_driver_seconds_are_counted_from_the_first_to_the_last_rollout() -> None:
    with AsyncWorkerPool("CartPole-v1", zeros, num_workers=0, mode="sync") as pool:
        began = time.perf_counter()
        for _ in pool.rollouts(Stop(env_steps=500)):
            time.sleep(0.05)
            pool.publish(zeros)
            pool.evaluate(1)
        elapsed, spent = time.perf_counter() - began, pool.statistics().driver_seconds
        time.sleep(0.2)
        assert pool.statistics().driver_seconds == spent
    assert set(spent) == {"learning", "publishing", "waiting", "calling"}
    assert 0.15 <= spent["learning"] <= sum(spent.values()) <= elapsed
