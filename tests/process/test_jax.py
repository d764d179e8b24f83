"""Check environments of JAX in forked and in spawned workers. Skipped if jax or gymnax is not installed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parenv import AsyncWorkerPool, Stop, WorkerOptions

pytest.importorskip("jax")
pytest.importorskip("gymnax")
# Compiling is slow on a busy machine.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


def cartpoles() -> Any:
    """Return CartPoles of gymnax in its own wrapper, with the autoreset mode that the wrapper does not declare."""
    import gymnax
    from gymnax.wrappers.gym import GymnaxToVectorGymWrapper

    env, parameters = gymnax.make("CartPole-v1")
    envs: Any = GymnaxToVectorGymWrapper(env, num_envs=4, params=parameters)
    envs.metadata = {**envs.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
    return envs


def zeros(observations: Any) -> Any:
    return np.zeros(len(observations), np.int32)


@pytest.mark.parametrize(
    "options",
    [
        WorkerOptions(start_method="spawn", start_timeout_s=400.0),
        WorkerOptions(start_method="spawn", preload=("jax", "gymnax"), start_timeout_s=400.0),
        WorkerOptions(start_timeout_s=400.0),
    ],
    ids=["spawned", "spawned and preloaded", "forked before jax is loaded"],
)
def test_gymnax_runs_in_workers(options: WorkerOptions) -> None:
    with AsyncWorkerPool(cartpoles, zeros, num_workers=2, mode="sync", rollout_length=32, workers=options) as pool:
        for rollout in pool.rollouts(Stop(env_steps=512)):
            assert rollout.observations.dtype == np.float32
            assert rollout.valid.all()
            ended = rollout.terminated
            assert (rollout.next_known == ~ended).all()
            assert np.isnan(rollout.next_observations()[ended]).all()
            assert not np.isnan(rollout.next_observations()[~ended]).any()
        assert pool.statistics().episodes >= 8
        # A pole that is always pushed to one side falls after about ten steps.
        assert 5 < pool.statistics().mean_length < 15


def test_workers_do_not_preallocate_the_memory_of_a_gpu() -> None:
    def is_preallocation_off(observations: Any) -> Any:
        return np.full(len(observations), os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false", np.int32)

    options = WorkerOptions(start_method="spawn", start_timeout_s=400.0)
    with AsyncWorkerPool(cartpoles, is_preallocation_off, num_workers=1, rollout_length=2, workers=options) as pool:
        assert next(pool.rollouts()).actions.all()
