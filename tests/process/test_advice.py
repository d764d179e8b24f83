"""``pool.advice()`` after real runs whose answer is known."""

from __future__ import annotations

import re
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from parenv import AsyncWorkerPool, ConfigurationError, Stop, WorkerOptions
from parenv.advice.recommendations import Advice
from parenv.process.cores import usable_cores


class Sleeping(gym.Env[Any, Any]):
    """Waits for something outside: ``seconds`` a step, ten times as long in every fourth sub-environment if uneven."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return np.zeros(3, np.float32), 0.0, False, False, {}


def zeros(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


def burn(processor_seconds: float) -> None:
    began = time.process_time()
    while time.process_time() - began < processor_seconds:
        pass


def advice_after(env_fn: Any, seconds_a_step: float, rollouts: int, **options: Any) -> Advice:
    """Advice after a loop that learns for so long from each env step."""
    with AsyncWorkerPool(env_fn, zeros, **options) as pool:
        for rollout, _ in zip(pool.rollouts(), range(rollouts), strict=False):
            burn(seconds_a_step * rollout.num_steps)
        return pool.advice()


@pytest.mark.more
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_cheap_environment_with_a_heavy_learner_is_told_that_workers_cannot_help(mode: Any) -> None:
    advice = advice_after("CartPole-v1", 2e-3, 4, num_envs=2, num_workers=1, rollout_length=32, mode=mode)
    assert not advice.parallel_helps
    assert advice.recommended.num_workers == 0
    assert advice.costs.ratio < 0.1
    assert re.search(
        r"workers cannot help: (learning is (9\d|100)% of the cost|.* keeps the only core busy)", advice.why
    )


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_sleeping_environment_with_a_light_learner_wants_more_workers_than_cores(mode: Any) -> None:
    advice = advice_after(lambda: Sleeping(4e-3), 1e-6, 6, num_envs=4, num_workers=2, rollout_length=16, mode=mode)
    assert advice.parallel_helps
    assert advice.recommended.num_workers > 2 * usable_cores()
    assert advice.worker_shares["environment"] > 0.5
    assert advice.costs.ratio > 10
    assert advice.predicted_steps_per_second > 2 * advice.costs.env_steps_per_second


@pytest.mark.more
def test_stragglers_are_for_async() -> None:
    factories = [lambda: Sleeping(1e-3), lambda: Sleeping(1e-3), lambda: Sleeping(1e-3), lambda: Sleeping(1e-2)]
    advice = advice_after(factories, 1e-6, 6, num_workers=4, rollout_length=16, mode="sync")
    assert advice.recommended.mode == "async"
    assert "more or less than the mean" in advice["mode"].because


def test_shares_of_workers_and_driver_are_shares() -> None:
    advice = advice_after("CartPole-v1", 1e-5, 4, num_envs=4, num_workers=2, mode="sync")
    for shares in (advice.worker_shares, advice.driver_shares):
        assert sum(shares.values()) == pytest.approx(1.0)
        assert all(0 <= share <= 1 for share in shares.values())
    assert advice.worker_shares["environment"] > 0


def test_a_run_in_this_process_gets_advice_too() -> None:
    advice = advice_after(lambda: Sleeping(2e-3), 1e-6, 3, num_envs=2, num_workers=0, rollout_length=16, mode="sync")
    assert advice.costs.setting.num_workers == 0
    assert advice.recommended.num_workers > 2


@pytest.mark.more
def test_the_devices_of_a_run_are_those_of_its_module_and_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = torch.nn.Linear(4, 2)

        def forward(self, observations: Any) -> Any:
            return self.scores(observations).argmax(-1)

    monkeypatch.setattr("parenv.advice.advising.accelerator", lambda policy: "cuda")
    net = Net()
    with AsyncWorkerPool("CartPole-v1", net, num_workers=1, workers=WorkerOptions(device="cpu:0")) as pool:
        next(pool.rollouts())
        net.to("meta")
        advice = pool.advice()
    for name, device in (("learner_device", "meta"), ("worker_device", "cpu:0")):
        assert (advice[name].value, advice[name].now) == (device, device)
        assert f", on {device}, is " in advice[name].because
        assert "cpu and cuda were not compared: parenv advise does" in advice[name].because


def test_there_is_no_advice_before_the_first_rollout() -> None:
    with (
        AsyncWorkerPool("CartPole-v1", zeros, num_workers=0) as pool,
        pytest.raises(ConfigurationError, match=r"^there is no advice before the first rollout: run the loop"),
    ):
        pool.advice()


def test_the_drivers_seconds_are_those_between_the_first_rollout_and_the_last() -> None:
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
