"""Check that ``num_workers="auto"`` and ``batch_size="auto"`` choose by measurements and change no result."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
import types
from typing import Any, ClassVar

import gymnasium as gym
import hypothesis.strategies as st
import numpy as np
import pytest
from comparison import assert_same
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from inside import pid_of

from parenv import ParallelVectorEnv, WorkerTimeoutError
from parenv.envs import step_cost
from parenv.envs.step_cost import StepCost
from parenv.vector import vector_plan, worker_choice
from parenv.vector.vector_session import VectorSession

N = 4
COSTLY_S = 0.05


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate two cores, and an overhead per step so high that cheap steps are cheap on a busy machine too."""
    for module in (worker_choice, vector_plan):
        monkeypatch.setattr(module, "usable_cores", lambda: 2)
    monkeypatch.setattr(worker_choice, "STEP_OVERHEAD_S", COSTLY_S)


class Sleepy(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper whose steps take so long that workers are worth it on any machine."""

    def step(self, action: Any) -> Any:
        time.sleep(COSTLY_S)
        return super().step(action)


def cheap() -> Any:
    return gym.make("CartPole-v1", max_episode_steps=6)


def costly() -> Any:
    return Sleepy(cheap())


@pytest.mark.one_in(6)
@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize(("make", "num_workers"), [(cheap, 0), (costly, 2)])
def test_only_costly_steps_have_workers_and_traces_equal_those_of_sync_vector_env(
    make: Any, num_workers: int, mode: AutoresetMode
) -> None:
    with (
        contextlib.closing(ParallelVectorEnv([make] * N, num_workers="auto", autoreset_mode=mode)) as envs,
        contextlib.closing(SyncVectorEnv([cheap] * N, autoreset_mode=mode)) as reference,
    ):
        assert envs.num_workers == num_workers
        assert envs.measured_step_s is not None
        assert (envs.measured_step_s >= COSTLY_S) == (num_workers > 0)
        reference.action_space.seed(0)
        for seed in (3, None, [7, None, 9, 11]):
            assert_same(envs.reset(seed=seed), reference.reset(seed=seed))
            for _ in range(8):
                actions = reference.action_space.sample()
                assert_same(envs.step(actions), reference.step(actions))


def test_waking_the_workers_is_timed_and_changes_no_result() -> None:
    with (
        contextlib.closing(ParallelVectorEnv([cheap] * N, num_workers=2)) as envs,
        contextlib.closing(SyncVectorEnv([cheap] * N)) as reference,
    ):
        assert_same(envs.reset(seed=3), reference.reset(seed=3))
        for _ in range(8):
            assert 0 < worker_choice.round_trip_s(envs._session.backend, 120.0) < 120.0
            actions = reference.action_space.sample()
            assert_same(envs.step(actions), reference.step(actions))


def test_a_worker_that_does_not_wake_up_is_an_error() -> None:
    with contextlib.closing(ParallelVectorEnv([cheap] * N, num_workers=2)) as envs:
        envs.reset()
        while (pid := pid_of(envs, 1)) < 0:
            envs.step(np.zeros(N, np.int64))
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WorkerTimeoutError, match=r"not every worker woke up within start_timeout_s=0\.05 s"):
            worker_choice.round_trip_s(envs._session.backend, 0.05)
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(("waking_s", "pays"), [(20e-6, True), (90e-6, False)])
def test_workers_need_costlier_steps_if_waking_them_takes_longer(waking_s: float, pays: bool) -> None:
    assert worker_choice.parallel_pays(5e-6, (12, 12), 2, waking_s) is pays


def test_with_a_given_number_of_workers_nothing_is_measured() -> None:
    with contextlib.closing(ParallelVectorEnv([cheap] * N, num_workers=1)) as envs:
        assert envs.measured_step_s is None


class Clocked(gym.Env[Any, Any]):
    """Environment with a simulated clock, which counts the calls of all instances and draws from global generators."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)
    now = 0.0
    counts: ClassVar[dict[str, int]]

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s
        self.counts["made"] += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.full(2, random.random() + np.random.rand() - 1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.counts["steps"] += 1
        Clocked.now += self.step_s
        return np.full(2, random.random() + np.random.rand() - 1, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        self.counts["closed"] += 1


@pytest.fixture
def own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock of the measurement, so that time passes only in steps of :class:`Clocked`."""
    Clocked.counts = dict.fromkeys(("made", "steps", "closed"), 0)
    monkeypatch.setattr(step_cost, "time", types.SimpleNamespace(perf_counter=lambda: Clocked.now))


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize(("step_s", "steps"), [(1e-3, 50), (4e-3, 20), (0.3, 4), (30.0, 1)])
def test_the_cost_of_a_step_is_measured_in_a_second_or_in_one_step(step_s: float, steps: int) -> None:
    with contextlib.closing(ParallelVectorEnv([lambda: Clocked(step_s)] * N, num_workers=0)) as envs:
        assert envs._session.measured_step(1.0).step_s == pytest.approx(step_s)
        assert abs(Clocked.counts["steps"] - steps) <= 1  # The clock is a sum of floats.


def random_states() -> list[Any]:
    return [random.getstate(), np.random.get_state(), Clocked.action_space.np_random.bit_generator.state]


@pytest.mark.usefixtures("own_clock")
def test_a_measurement_changes_no_environment_and_no_random_state() -> None:
    with contextlib.closing(ParallelVectorEnv([lambda: Clocked(1e-3)] * N, num_workers=0)) as envs:
        Clocked.action_space.seed(5)
        before = random_states()
        assert envs._session.measured_step(1.0).step_s > 0
        assert_same(random_states(), before)
        assert (Clocked.counts["made"], Clocked.counts["closed"]) == (N + 1, 1)


class Strict(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that raises an error in every step."""

    def step(self, action: Any) -> Any:
        raise LookupError("an illegal move")


class Deadly(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that ends its process in every step."""

    def step(self, action: Any) -> Any:
        os._exit(3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("kind", "why"), [(Strict, "LookupError: an illegal move"), (Deadly, "WorkerDiedError: worker 0")]
)
def test_without_a_measurement_there_is_one_worker_per_core_and_a_warning(
    kind: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parenv.vector.vector_plan.usable_cores", lambda: 2)
    with pytest.warns(UserWarning, match=f'num_workers="auto" .* {why}'):
        envs = ParallelVectorEnv([lambda: kind(cheap())] * N, num_workers="auto")
    with contextlib.closing(envs):
        assert (envs.num_workers, envs.measured_step_s) == (2, None)
        envs.reset(seed=1)


@pytest.mark.more
def test_a_measurement_that_does_not_end_is_an_error() -> None:
    class Stuck(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            time.sleep(60)

    with (
        contextlib.closing(ParallelVectorEnv([lambda: Stuck(cheap())] * N, num_workers=2)) as envs,
        pytest.raises(multiprocessing.TimeoutError, match="`the measurement of a step` has timed out"),
    ):
        envs._session.measured_step(0.05)


@pytest.mark.parametrize(("spread_s", "rows"), [(0.0, 8), (0.05, 4)])
def test_recv_returns_fewer_rows_if_steps_take_different_times(
    monkeypatch: pytest.MonkeyPatch, spread_s: float, rows: int
) -> None:
    monkeypatch.setattr(VectorSession, "measured_step", lambda *_: StepCost(0.01, spread_s))
    monkeypatch.setattr(worker_choice, "round_trip_s", lambda *_: 1e-4)
    with contextlib.closing(ParallelVectorEnv([cheap] * 8, num_workers=2, batch_size="auto")) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(8, np.int64))
        observations = envs.recv()[0]
        assert (envs.batch_size, envs.measured_step_s) == (len(observations), 0.01) == (rows, 0.01)
        assert len(envs.recv(batch_size=1)[0]) == 1 if rows < 8 else True


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "caller_steps": True}])
def test_an_automatic_batch_size_needs_no_worker_that_measures(options: dict[str, Any]) -> None:
    with contextlib.closing(ParallelVectorEnv([cheap] * N, batch_size="auto", **options)) as envs:
        assert 1 <= envs.batch_size <= N


def test_without_a_measurement_an_automatic_batch_size_is_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> StepCost:
        raise ValueError("illegal move")

    monkeypatch.setattr(VectorSession, "measured_step", fail)
    with pytest.warns(UserWarning, match='batch_size="auto" chooses all rows, because .* illegal move'):
        envs = ParallelVectorEnv([cheap] * N, num_workers=2, batch_size="auto")
    with contextlib.closing(envs):
        assert envs.batch_size == N


@given(st.integers(1, 256), st.integers(1, 32), *[st.floats(1e-7, 1.0)] * 3)
def test_the_rows_of_a_batch_are_at_least_those_of_a_worker(
    num_envs: int, workers: int, step_s: float, spread_s: float, call_s: float
) -> None:
    workers = min(workers, num_envs)
    rows = worker_choice.rows_of_batch(num_envs, workers, StepCost(step_s, spread_s), call_s)
    assert num_envs // workers <= rows <= num_envs
