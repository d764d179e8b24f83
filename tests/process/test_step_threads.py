"""Check that ``step_threads`` steps sub-environments concurrently and changes no result."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from comparison import assert_same
from envs import Acting, kill_oneself, once, sleep_long
from policies import zeros

from parenv import AsyncWorkerPool, ConfigurationError, RestartPolicy, Stop, WorkerOptions, WorkerTimeoutError
from parenv.errors import RestartLimitError
from parenv.testing import LedgerEnv, check_ledger

pytestmark = pytest.mark.usefixtures("warnings_are_expected")
OFTEN = RestartPolicy(max_restarts=10_000, backoff_s=1e-3, max_backoff_s=2e-3)
AT_MOST_S = 60.0


class RandomDuration(gym.Env[Any, Any]):
    """Environment with random step durations and episode lengths, which fails at random with probability ``chance``."""

    observation_space = gym.spaces.Dict({"state": gym.spaces.Box(-9, 9, (3,)), "words": gym.spaces.Text(9)})
    action_space = gym.spaces.Discrete(5)

    def __init__(self, chance: float = 0.0) -> None:
        self._chance, self._state = chance, np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is None:
            self._maybe_fail()
        return self._seen(), {"luck": float(self.np_random.random())}

    def step(self, action: Any) -> Any:
        self._maybe_fail()
        time.sleep(self.np_random.random() / 1000)
        ended = bool(self.np_random.random() < 0.2)
        return self._seen(), float(action) / 3, ended, False, {"luck": float(self.np_random.random())}

    def _maybe_fail(self) -> None:
        if self.np_random.random() < self._chance:
            raise ValueError("dropped its cup")

    def _seen(self) -> Any:
        self._state[:] = self.np_random.normal(size=3)
        return {"state": self._state, "words": str(self.np_random.integers(1000))}


def noisy_policy(observations: Any, luck: Any) -> Any:
    """Return actions that depend on observations, an info and the global generator of numpy."""
    return (np.abs(observations["state"]).sum(axis=1) + luck + np.random.randint(5)).astype(np.int64) % 5


def rollouts_of(chance: float, num_workers: int, **options: Any) -> list[Any]:
    """Return the content of some rollouts and of an evaluation, without times."""
    found = []
    with AsyncWorkerPool(
        lambda: RandomDuration(chance),
        noisy_policy,
        num_envs=7,
        num_workers=num_workers,
        mode="sync",
        rollout_length=9,
        infos=("luck",),
        seed=3,
        workers=WorkerOptions(**options),
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=7 * 9 * 6)):
            arrays = {one.name: getattr(rollout, one.name) for one in fields(rollout) if one.compare}
            del arrays["episodes"]
            episodes = rollout.episodes
            found.append([arrays, rollout.final_observations, episodes.returns, episodes.lengths, episodes.env_ids])
        if not chance:  # An environment that fails in an evaluation is not replaced.
            evaluated = pool.evaluate(9)
            found.append([evaluated.returns, evaluated.lengths, evaluated.env_ids])
        found.append(pool.statistics().env_restarts)
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_rollouts_and_evaluations_do_not_depend_on_the_number_of_threads(num_workers: int) -> None:
    one = rollouts_of(0.0, num_workers)
    for step_threads in (2, 32):
        assert_same(rollouts_of(0.0, num_workers, step_threads=step_threads), one)


def test_replaced_environments_do_not_depend_on_the_number_of_threads() -> None:
    how = {"restart": OFTEN, "on_env_error": "restart_env"}
    one = rollouts_of(0.1, 2, **how)
    assert one[-1] > 10
    assert_same(rollouts_of(0.1, 2, step_threads=3, **how), one)


class Meets(LedgerEnv):
    """Ledger with episodes of four steps, whose steps and resets block until three threads have called one."""

    meeting = threading.Barrier(3)

    def reset(self, **kwargs: Any) -> Any:
        self.meeting.wait(AT_MOST_S)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.meeting.wait(AT_MOST_S)
        observation, reward, *_ = super().step(action)
        return observation, reward, bool(observation[2] == 4), False, {}


def test_three_threads_step_and_reset_three_environments_at_once() -> None:
    factories = [lambda env_id=env_id: Meets(env_id) for env_id in range(6)]
    options = WorkerOptions(step_threads=3)
    with AsyncWorkerPool(factories, zeros, num_workers=0, mode="sync", rollout_length=10, workers=options) as pool:
        rollout = next(pool.rollouts())
    assert rollout.terminated.sum() == 6 * 2


@pytest.mark.more
def test_every_transition_arrives_once_even_if_workers_die_and_hang(tmp_path: Path) -> None:
    def die_and_hang(env: Any) -> None:
        for name, act in (("killed", kill_oneself), ("hung", sleep_long)):
            if env.env_id == 2 and env.episode == 2 and once(tmp_path / name):
                act()

    expected: dict[int, tuple[int, ...]] = {}
    factories = [lambda env_id=env_id: Acting(env_id, die_and_hang) for env_id in range(6)]
    options = WorkerOptions(step_threads=3, step_timeout_s=3.0, restart=OFTEN)
    with AsyncWorkerPool(factories, zeros, num_workers=2, rollout_length=8, workers=options) as pool:
        for rollout in pool.rollouts():
            check_ledger(rollout, expected)
            if {path.name for path in tmp_path.iterdir()} == {"killed", "hung"} and rollout.restarted.any():
                break


def failing(env_id: int, who: tuple[int, ...], where: str, act: Callable[[], object], **options: Any) -> LedgerEnv:
    """Return a ledger that calls ``act`` in each step or reset after the first reset, if its env_id is in ``who``."""

    def maybe(env: Any) -> None:
        if env.episode >= 0:
            act()

    return Acting(env_id, **{f"on_{where}": maybe}, **options) if env_id in who else LedgerEnv(env_id, **options)


def fail() -> None:
    raise ValueError("dropped its cup")


@pytest.mark.parametrize("who", [(0,), (5,), (0, 5), tuple(range(6))], ids=str)
def test_after_a_reset_that_raises_no_environment_steps_twice(who: tuple[int, ...], tmp_path: Path) -> None:
    def make(env_id: int) -> Any:
        return failing(env_id, who, "reset", lambda: once(tmp_path / str(env_id)) and fail(), pool_seed=5)

    expected: dict[int, tuple[int, ...]] = {}
    options = WorkerOptions(step_threads=3, on_env_error="restart_env", restart=OFTEN)
    factories = [functools.partial(make, env_id) for env_id in range(6)]
    with AsyncWorkerPool(
        factories, zeros, num_workers=0, mode="sync", rollout_length=10, workers=options, seed=5
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=6 * 10 * 2)):
            check_ledger(rollout, expected)
        assert pool.statistics().env_restarts == len(who)


def opened(who: tuple[int, ...], where: str, act: Any, num_workers: int = 1, **options: Any) -> AsyncWorkerPool:
    factories = [functools.partial(failing, env_id, who, where, act) for env_id in range(6)]
    workers = WorkerOptions(step_threads=4, **options)
    return AsyncWorkerPool(factories, zeros, num_workers=num_workers, rollout_length=64, workers=workers)


@pytest.mark.parametrize("where", ["step", "reset"])
def test_an_exception_has_its_env_id_and_the_frames_of_the_user(where: str) -> None:
    with opened((2, 4), where, fail) as pool, pytest.raises(ValueError, match="dropped its cup") as caught:
        for _ in pool.rollouts():
            pass
    said = f"{caught.value.__cause__} {getattr(caught.value, '__notes__', '')}"
    assert "env_id 2" in said
    assert where in said
    assert "in fail" in said
    assert "threaded_stepping" not in said


@pytest.mark.one_in(2)
@pytest.mark.parametrize("where", ["step", "reset"])
def test_a_timeout_names_the_environment_that_hangs(where: str) -> None:
    limits = {"step_timeout_s": 3.0, "reset_timeout_s": 3.0, "restart": None}
    with opened((2,), where, sleep_long, **limits) as pool, pytest.raises(WorkerTimeoutError) as caught:
        for _ in pool.rollouts():
            pass
    assert f"during env.{where}() of env_id 2" in str(caught.value)


@pytest.mark.more
def test_an_environment_that_hangs_repeatedly_ends_the_pool() -> None:
    limits = {"step_timeout_s": 3.0, "restart": RestartPolicy(max_restarts=1, backoff_s=0.01)}
    with opened((5,), "step", sleep_long, **limits) as pool, pytest.raises(RestartLimitError, match="env_id 5"):
        for _ in pool.rollouts():
            pass


def test_an_evaluation_that_fails_leaves_the_next_one_alone(tmp_path: Path) -> None:
    def fail_once() -> None:
        if once(tmp_path / "failed"):
            fail()

    with opened((1,), "step", fail_once, num_workers=0) as pool:
        with pytest.raises(ValueError, match="dropped its cup"):
            pool.evaluate(12)
        assert pool.evaluate(12).lengths.shape == (12,)


@pytest.mark.parametrize("step_threads", [0, -1, 1.5, "4", None])
def test_an_invalid_number_of_threads_is_an_error(step_threads: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"WorkerOptions\.step_threads must be an integer of at least 1"):
        WorkerOptions(step_threads=step_threads)


def test_a_native_vector_env_is_refused() -> None:
    def make() -> Any:
        return gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")

    with pytest.raises(ConfigurationError, match="step_threads=4 needs single sub-environments, but env_fn makes a"):
        AsyncWorkerPool(make, zeros, num_workers=1, workers=WorkerOptions(step_threads=4))


def test_sub_environments_of_a_sync_vector_env_are_stepped_in_threads() -> None:
    def make() -> Any:
        return gym.vector.SyncVectorEnv([lambda i=i: LedgerEnv(i) for i in range(3)])

    options, expected = WorkerOptions(step_threads=3), dict[int, tuple[int, ...]]()
    with AsyncWorkerPool(make, zeros, num_workers=1, rollout_length=8, workers=options) as pool:
        for rollout in pool.rollouts(Stop(env_steps=240)):
            check_ledger(rollout, expected)
