"""Check that a pool returns exactly the transitions of a plain loop over real environments with the same seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from parenv import AsyncWorkerPool, Stop
from parenv.envs.seeding import environment_seed

SEED, T = 11, 40


def make(name: str) -> Any:
    if name.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
        env = gym.make(name, frameskip=1)
        env = gym.wrappers.AtariPreprocessing(env, noop_max=0, frame_skip=4, screen_size=84)
        return gym.wrappers.TimeLimit(gym.wrappers.FrameStackObservation(env, 4), 33)
    if name == "CartPole-v1 of 5 steps":
        return gym.make("CartPole-v1", max_episode_steps=5)
    return gym.make(name)


def policy_for(space: Any) -> Any:
    """Return a deterministic policy whose actions depend on the observations."""

    def act(observations: Any) -> Any:
        sums = observations.reshape(len(observations), -1).astype(np.float64).sum(axis=1)
        if isinstance(space, gym.spaces.Discrete):
            return (np.abs(sums * 1000).astype(np.int64) % space.n).astype(np.int64)
        return np.tanh(np.outer(sums, np.arange(1, space.shape[0] + 1))).astype(space.dtype)

    return act


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name", ["CartPole-v1 of 5 steps", "LunarLander-v3", "Pendulum-v1", "HalfCheetah-v5", "Taxi-v4", "ALE/Pong-v5"]
)
def test_a_real_environment_runs_as_in_a_plain_loop(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("LunarLander"):
        pytest.importorskip("Box2D", reason="box2d has no wheel for Python 3.14")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log file into the working directory.
    env = make(name)
    policy = policy_for(env.action_space)
    env.close()
    with AsyncWorkerPool(
        lambda: make(name), policy, num_envs=3, num_workers=2, mode="sync", rollout_length=T, seed=SEED
    ) as pool:
        rollouts = [rollout.copy() for rollout in pool.rollouts(Stop(env_steps=T * 3 * 3))]
    for env_id in range(3):
        env = make(name)
        observation, _ = env.reset(seed=environment_seed(SEED, env_id))
        for rollout in rollouts:
            following = rollout.next_observations()
            for row in range(T):
                observation = np.array(observation)
                assert np.array_equal(rollout.observations[row, env_id], observation)
                action = policy(observation[None])[0]
                assert np.array_equal(rollout.actions[row, env_id], action)
                observation, reward, terminated, truncated, _ = env.step(action)
                assert np.array_equal(following[row, env_id], observation)
                assert rollout.rewards[row, env_id] == np.float32(reward)
                assert (rollout.terminated[row, env_id], rollout.truncated[row, env_id]) == (terminated, truncated)
                if terminated or truncated:
                    observation, _ = env.reset()
        env.close()
