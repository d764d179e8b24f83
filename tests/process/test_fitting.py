"""Check how pools and vector envs treat observations and actions that do not fit the dtype or shape of their space."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parenv import AsyncWorkerPool, ParallelVectorEnv, Stop, WorkerOptions
from parenv.errors import ObservationError, PolicyOutputError

BOX = spaces.Box(-9, 9, (2,), np.float32)


class Showing(gym.Env[Any, Any]):
    """Environment whose resets return ``first`` and whose steps return ``shown`` as observation."""

    def __init__(self, first: Any, shown: Any = None, space: Any = BOX, action_space: Any = BOX) -> None:
        self.observation_space, self.action_space = space, action_space
        self.first, self.shown = first, first if shown is None else shown

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action: Any) -> Any:
        return self.shown, 0.0, False, False, {}


class OwnVectorEnv(SyncVectorEnv):
    """SyncVectorEnv that a pool steps as a whole, and whose observations have another dtype than their space."""

    def step(self, actions: Any) -> Any:
        observations, *rest = super().step(actions)
        return observations.astype(np.float64), *rest


SINGLE, DOUBLE = np.zeros(2, np.float32), np.zeros(2)


def single(observations: Any) -> Any:
    return np.zeros((len(observations), 2), np.float32)


def double(observations: Any) -> Any:
    return np.zeros((len(observations), 2))


def run_pool(make: Any, policy: Any, num_workers: int, steps: int = 64, **options: Any) -> None:
    """Collect from a pool, and check the dtypes of rollouts."""
    with AsyncWorkerPool(
        make, policy, num_workers=num_workers, num_envs=4, rollout_length=4, workers=WorkerOptions(**options)
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=steps)):
            assert rollout.observations.dtype == np.float32
            assert rollout.actions.dtype == np.float32


def run_vector(make: Any, actions: Any, num_workers: int, steps: int = 3, same: Any = None, **options: Any) -> None:
    """Step a vector env of four environments, and check the dtype of observations."""
    others = [make if same is None else same] * 3
    envs = ParallelVectorEnv([make, *others], num_workers=num_workers, workers=WorkerOptions(**options))
    try:
        assert envs.reset()[0].dtype == np.float32
        for _ in range(steps):
            assert envs.step(actions)[0].dtype == np.float32
    finally:
        envs.close()


def one_of(run: Any, shown: Any, action_space: Any = BOX) -> dict[str, Any]:
    """Return arguments by which only the first sub-environment of a vector env is wrong, as several raise a group."""
    return {"same": lambda: Showing(shown, action_space=action_space)} if run is run_vector else {}


ALL = {
    "pool, observations": (
        run_pool,
        lambda: Showing(DOUBLE),
        single,
        "observations should have dtype float32 .* got float64, and they are cast",
    ),
    "pool, later observations": (
        run_pool,
        lambda: Showing(SINGLE, DOUBLE),
        single,
        "observations should have dtype float32",
    ),
    "pool, actions": (
        run_pool,
        lambda: Showing(SINGLE),
        double,
        "actions should have dtype float32 .* got float64, and they are cast",
    ),
    "pool, tensors": (
        run_pool,
        lambda: Showing(SINGLE),
        torch.nn.Identity().double(),
        "actions should have dtype float32",
    ),
    "vector, observations": (
        run_vector,
        lambda: Showing(DOUBLE),
        np.zeros((4, 2), np.float32),
        "observations should have dtype float32",
    ),
    "vector, later observations": (
        run_vector,
        lambda: Showing(SINGLE, DOUBLE),
        np.zeros((4, 2), np.float32),
        "observations should have dtype float32",
    ),
    "vector, actions": (
        run_vector,
        lambda: Showing(SINGLE),
        np.zeros((4, 2)),
        r"actions should have dtype float32 like their space, got float64\. Convert",
    ),
}
ALL["pool, tensors"] = (
    *ALL["pool, tensors"][:2],
    lambda o: torch.zeros(len(o), 2, dtype=torch.float64),
    "actions should have dtype float32",
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("case", ALL)
def test_another_dtype_of_the_same_kind_is_cast_with_one_warning(case: str, num_workers: int) -> None:
    run, make, other, message = ALL[case]
    with pytest.warns(UserWarning, match=message) as caught:
        run(make, other, num_workers)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("case", ALL)
def test_with_strict_dtype_another_dtype_is_an_error(case: str, num_workers: int) -> None:
    run, make, other, _ = ALL[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            (ObservationError, PolicyOutputError, ValueError), match=r"float64.*strict_dtype=True forbids"
        ):
            run(make, other, num_workers, strict_dtype=True, **one_of(run, SINGLE))


KINDS = {
    "pool, observations": (run_pool, lambda: Showing(np.zeros(2, complex)), single, ObservationError),
    "pool, integer observations": (
        run_pool,
        lambda: Showing(DOUBLE, space=spaces.MultiDiscrete([3, 3])),
        single,
        ObservationError,
    ),
    "pool, actions": (
        run_pool,
        lambda: Showing(SINGLE, action_space=spaces.MultiDiscrete([3, 3])),
        single,
        PolicyOutputError,
    ),
    "vector, observations": (run_vector, lambda: Showing(np.zeros(2, complex)), single([1] * 4), ObservationError),
    "vector, actions": (
        run_vector,
        lambda: Showing(SINGLE, action_space=spaces.MultiDiscrete([3, 3])),
        single([1] * 4) + np.float32(0.5),
        ValueError,
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("case", KINDS)
def test_a_dtype_of_another_kind_is_always_an_error(case: str, num_workers: int) -> None:
    run, make, other, error = KINDS[case]
    with pytest.raises(error, match=r"cannot be cast to|complex"):
        run(make, other, num_workers, **one_of(run, SINGLE, make().action_space))


def test_actions_that_change_their_shape_later_are_an_error() -> None:
    calls = []

    def policy(observations: Any) -> Any:
        calls.append(0)
        return single(observations) if len(calls) < 9 else np.zeros((1, 2), np.float32)

    with pytest.raises(PolicyOutputError, match=r"must return actions of shape \(4, 2\).*got shape \(1, 2\)"):
        run_pool(lambda: Showing(SINGLE), policy, 0)


def test_actions_of_another_shape_are_an_error_in_a_vector_env() -> None:
    with pytest.raises(ValueError, match=r"actions must have shape \(4, 2\) for 4 sub-environments, got \(4,\)"):
        run_vector(lambda: Showing(SINGLE), np.zeros(4, np.float32), 2)


def test_observations_of_a_vector_env_in_a_worker_are_treated_like_others() -> None:
    def make() -> Any:
        return OwnVectorEnv([lambda: Showing(SINGLE)] * 4, autoreset_mode=AutoresetMode.SAME_STEP)

    with pytest.warns(UserWarning, match="observations should have dtype float32"):
        run_pool(make, single, 1)
    with pytest.raises(ObservationError, match="strict_dtype=True"):
        run_pool(make, single, 1, strict_dtype=True)


class Sick(Showing):
    """Environment that observes NaN in its third step if its env_id is 2."""

    def __init__(self, env_id: int) -> None:
        super().__init__(SINGLE)
        self.steps, self.env_id = 0, env_id

    def step(self, action: Any) -> Any:
        self.steps += 1
        shown = np.full(2, np.nan, np.float32) if (self.steps, self.env_id) == (3, 2) else SINGLE
        return shown, 0.0, False, False, {}


SICK = [lambda env_id=env_id: Sick(env_id) for env_id in range(4)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_error_for_nan_in_an_observation_names_env_id_and_step(num_workers: int) -> None:
    options = WorkerOptions(check_finite=True)
    with (
        AsyncWorkerPool(SICK, single, num_workers=num_workers, rollout_length=2, workers=options) as pool,
        pytest.raises(
            ObservationError, match=r"^env_id 2: in env step 3: the observation must be finite, got array\(\[nan"
        ),
    ):
        for _ in pool.rollouts():  # The other worker may deliver rollouts before the error is raised.
            pass
    envs = ParallelVectorEnv(SICK, num_workers=num_workers, workers=options)
    envs.reset()
    for _ in range(2):
        envs.step(single([1] * 4))
    with pytest.raises(ObservationError, match=r"^env_id 2: in env step 3: the observation must be finite, got"):
        envs.step(single([1] * 4))
    envs.close()


def test_the_error_for_nan_in_an_action_names_env_id_and_step() -> None:
    def policy(observations: Any) -> Any:
        actions = single(observations)
        actions[1, 0] = np.inf if len(calls) == 2 else 0
        calls.append(0)
        return actions

    calls: list[int] = []
    options = WorkerOptions(check_finite=True)
    with (
        AsyncWorkerPool(lambda: Showing(SINGLE), policy, num_workers=0, num_envs=2, workers=options) as pool,
        pytest.raises(PolicyOutputError, match=r"action for env_id 1 in env step 3 must be finite, got array\(\[inf"),
    ):
        next(pool.rollouts())
    envs = ParallelVectorEnv([lambda: Showing(SINGLE)] * 4, num_workers=0, workers=options)
    envs.reset()
    actions = single([1] * 4)
    actions[3, 1] = np.nan
    with pytest.raises(ValueError, match="the action for env_id 3 must be finite"):
        envs.step(actions)
    envs.close()


def test_an_infinite_action_for_a_replaced_environment_is_an_error() -> None:
    class Raises(Sick):
        def step(self, action: Any) -> Any:
            if (self.steps, self.env_id) == (2, 1):
                raise RuntimeError("the motor is hot")
            return super().step(action)

    def policy(observations: Any) -> Any:
        calls.append(0)
        return single(observations) + (np.inf if len(calls) == 4 else 0)

    calls: list[int] = []
    options = WorkerOptions(check_finite=True, on_env_error="restart_env")
    factories = [lambda env_id=env_id: Raises(env_id) for env_id in range(2)]
    with (
        AsyncWorkerPool(factories, policy, num_workers=0, workers=options) as pool,
        pytest.raises(
            PolicyOutputError, match=r"^the policy's action for env_id 1 in env step 3 must be finite, got array"
        ),
    ):
        next(pool.rollouts())


def test_without_check_finite_nan_is_not_an_error() -> None:
    with AsyncWorkerPool(SICK, single, num_workers=0, rollout_length=8) as pool:
        assert np.isnan(next(pool.rollouts()).observations).any()


def test_booleans_are_actions_of_discrete_two() -> None:
    with AsyncWorkerPool("CartPole-v1", lambda o: o[:, 2] > 0, num_workers=0, num_envs=2) as pool:
        assert next(pool.rollouts()).actions.dtype == np.int64
