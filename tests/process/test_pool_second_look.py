"""Check that a pool whose number of workers was not given warns once if the steps of its environments wait."""

from __future__ import annotations

import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from parenv import AsyncWorkerPool, Stop
from parenv.platform import system
from parenv.pool import second_look


class Waits(gym.Env[Any, Any]):
    """Environment whose step sleeps."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(0.002)
        return np.zeros(2, np.float32), 0.0, False, False, {}


def act(observations: Any) -> Any:
    return np.zeros(len(observations), int)


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_look, "LOOK_S", 0.0)
    # A busy machine would have its workers wait for a core.
    monkeypatch.setattr(system, "processor_time", lambda pid: system.ProcessorTime(0.0, 0.0))


def collect(**options: Any) -> list[str]:
    """Return the warnings of a pool of 16 environments."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with AsyncWorkerPool(Waits, act, num_envs=16, rollout_length=8, **options) as pool:
            for _ in pool.rollouts(Stop(env_steps=16 * 8 * 6)):
                pass
    return [str(one.message) for one in found]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_steps_that_wait_are_named_once_with_the_number_of_workers(mode: Any) -> None:
    (warning,) = collect(mode=mode)
    assert "num_workers=16" in warning
    assert "steps of the environments wait" in warning


def test_a_given_number_of_workers_is_not_questioned() -> None:
    assert collect(num_workers=1) == []


@pytest.mark.parametrize(
    ("computed", "queued", "gain"),
    [
        pytest.param(10.0, 0.0, 1.0, id="steps compute"),
        pytest.param(1.0, 0.0, 5.3, id="steps wait"),
        pytest.param(4.0, 6.0, 1.0, id="steps wait for a core"),
    ],
)
def test_only_waiting_for_something_else_than_a_core_can_be_shared(computed: float, queued: float, gain: float) -> None:
    before, after = (second_look.Times(n, n * computed / 10, n * queued / 10, loop=n, idle=n) for n in (5.0, 15.0))
    found = second_look.gain_of_more_workers(before, after, num_workers=1, most=10)
    assert found == pytest.approx(gain, abs=0.1)
