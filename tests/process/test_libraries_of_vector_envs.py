"""Check vector envs of EnvPool, gymnax, brax and Gymnasium, alone and in pools. Skipped if not installed."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parenv import AsyncWorkerPool, Stop, WorkerOptions
from parenv.testing import check_vector_env

# Compiling is slow on a busy machine, and these libraries emit many warnings.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
SPAWNED = WorkerOptions(start_method="spawn", start_timeout_s=500.0)
NEXT, SAME = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP


@pytest.fixture(autouse=True)
def imported(request: pytest.FixtureRequest) -> None:
    """Import the library before the test, because EnvPool keeps the frames of its first import and their objects."""
    cases = getattr(request.node, "callspec", None)
    pytest.importorskip(cases.params["library"] if cases else "envpool")


def native_cartpole() -> Any:
    return gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")


def jax_cartpole() -> Any:
    return gym.make_vec("phys2d/CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")


def envpool_cartpole() -> Any:
    import envpool

    return envpool.make_gymnasium("CartPole-v1", num_envs=4, num_threads=1)


def seeded_envpool() -> Any:
    import random

    import envpool

    # EnvPool is seeded when it is made. The random state differs between workers, so their seeds differ too.
    return envpool.make_gymnasium("CartPole-v1", num_envs=4, num_threads=1, seed=random.getrandbits(30))


def envpool_pong() -> Any:
    import envpool

    return envpool.make_gymnasium("Pong-v5", num_envs=2, max_episode_steps=40, num_threads=1)


def gymnax_cartpole() -> Any:
    import gymnax
    from gymnax.wrappers.gym import GymnaxToVectorGymWrapper

    env, parameters = gymnax.make("CartPole-v1")
    envs: Any = GymnaxToVectorGymWrapper(env, num_envs=4, params=parameters)
    envs.metadata = {**envs.metadata, "autoreset_mode": SAME}
    return envs


def brax_pendulum() -> Any:
    """Return a vector env around brax's own wrappers, because its wrapper for gym does not support Gymnasium."""
    import jax
    from brax import envs

    class Batch(gym.vector.VectorEnv[Any, Any, Any]):
        metadata = {"autoreset_mode": SAME}  # noqa: RUF012
        num_envs = 4

        def __init__(self) -> None:
            wrappers = {"episode_length": 20, "auto_reset": True, "batch_size": 4}
            env = envs.create("inverted_pendulum", backend="generalized", **wrappers)
            self._begin, self._go_on = jax.jit(env.reset), jax.jit(env.step)
            size = (env.observation_size,)
            self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, size, np.float32)
            self.single_action_space = gym.spaces.Box(-1, 1, (env.action_size,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self._state = self._begin(jax.random.PRNGKey(seed or 0))
            return self._state.obs, {}

        def step(self, actions: Any) -> Any:
            self._state = state = self._go_on(self._state, actions)
            truncated = state.info["truncation"].astype(bool)
            return state.obs, state.reward, state.done.astype(bool) & ~truncated, truncated, {}

    return Batch()


LIBRARIES = {
    "gymnasium": ("gymnasium", native_cartpole, NEXT),
    "gymnasium with jax": ("jax", jax_cartpole, NEXT),
    "envpool": ("envpool", envpool_cartpole, NEXT),
    "envpool with images": ("envpool", envpool_pong, NEXT),
    "gymnax": ("gymnax", gymnax_cartpole, SAME),
}
SLOW = pytest.param("brax", brax_pendulum, SAME, id="brax", marks=pytest.mark.soak)
QUICK = [pytest.param(*case, id=name) for name, case in LIBRARIES.items()]
ALL = pytest.mark.parametrize(("library", "make", "mode"), [*QUICK, SLOW])


@ALL
def test_they_are_as_they_say(library: str, make: Any, mode: AutoresetMode) -> None:
    report = check_vector_env(make, steps=200)
    assert report.problems == []
    assert report.found is mode
    assert report.ends > 1


@pytest.mark.more
@ALL
def test_they_fill_rollouts_of_transitions(library: str, make: Any, mode: AutoresetMode) -> None:
    def first_action(observations: Any) -> Any:
        size = make_action.shape
        return np.zeros((len(observations), *size), make_action.dtype)

    make_action = gym.spaces.Box(-1, 1, (1,), np.float32) if make is brax_pendulum else gym.spaces.Discrete(2)
    with AsyncWorkerPool(make, first_action, num_workers=2, mode="sync", rollout_length=16, workers=SPAWNED) as pool:
        for rollout in pool.rollouts(Stop(env_steps=600)):
            ended = rollout.terminated | rollout.truncated
            if mode is NEXT:
                assert (~rollout.valid[1:] == ended[:-1]).all()
                assert rollout.next_known.all()
                assert (rollout.next_observations()[:-1] == rollout.observations[1:]).all()
            else:
                assert rollout.valid.all()
                gives_finals = library == "gymnax" and int(version("gymnax").partition(".")[0]) >= 1
                assert (rollout.next_known == (~ended | gives_finals)).all()
            assert not rollout.rewards[~rollout.valid].any()
            assert len(rollout.transitions()) == rollout.num_steps == rollout.valid.sum()
        assert pool.statistics().episodes > 4
        lengths, limit = pool.statistics().mean_length, {envpool_pong: 40, brax_pendulum: 20}.get(make, 15)
        assert lengths <= limit


def test_envpools_that_take_their_seed_from_the_worker_are_different_and_repeat() -> None:
    def lean(observations: Any) -> Any:
        return (observations[:, 2] > 0).astype(np.int64)

    def collected() -> Any:
        with AsyncWorkerPool(
            seeded_envpool, lean, num_workers=2, mode="sync", rollout_length=8, seed=5, workers=SPAWNED
        ) as pool:
            return next(pool.rollouts()).copy().observations

    one, again = collected(), collected()
    assert (one == again).all()
    assert len(np.unique(one[0, :, 0])) == 8
