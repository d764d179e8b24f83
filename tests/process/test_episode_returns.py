"""Check that a pool reports the returns of ``RecordEpisodeStatistics`` if outer wrappers change the rewards."""

from __future__ import annotations

import functools
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs import Plain
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeReward, RecordEpisodeStatistics, TransformReward
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordVectorEpisodeStatistics
from gymnasium.wrappers.vector import TransformReward as TransformVectorReward
from policies import zeros

from parenv import AsyncWorkerPool, Stop

LIVES, LIFE = 3, 5
STEP_S = 0.0005


def nap(env: Any) -> None:
    time.sleep(STEP_S)


Game = functools.partial(Plain, length=LIVES * LIFE, reward=2.0, on_step=nap)
"""Environment with a reward of 2 per step, whose episodes consist of three lives of five steps."""


class EpisodicLife(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that ends an episode with each life, as for Atari games. Only the last life ends the game."""

    over = True

    def reset(self, **more: Any) -> Any:
        if self.over:
            return self.env.reset(**more)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        observation, reward, self.over, truncated, info = self.env.step(action)
        return observation, reward, self.env.unwrapped.steps % LIFE == 0, truncated, info


def halved(reward: Any) -> Any:
    return reward / 2


def game() -> gym.Env[Any, Any]:
    return TransformReward(RecordEpisodeStatistics(Game()), halved)


def lives() -> gym.Env[Any, Any]:
    return TransformReward(EpisodicLife(RecordEpisodeStatistics(Game())), halved)


def games(mode: AutoresetMode) -> Any:
    vector_env = SyncVectorEnv([Game, Game], autoreset_mode=mode)
    return TransformVectorReward(RecordVectorEpisodeStatistics(vector_env), halved)


def wrapped_games(mode: AutoresetMode) -> Any:
    return TransformVectorReward(SyncVectorEnv([game, game], autoreset_mode=mode), halved)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    "make",
    [
        game,
        lambda: games(AutoresetMode.NEXT_STEP),
        lambda: games(AutoresetMode.SAME_STEP),
        lambda: games(AutoresetMode.DISABLED),
        lambda: wrapped_games(AutoresetMode.NEXT_STEP),
        lambda: wrapped_games(AutoresetMode.SAME_STEP),
        lambda: wrapped_games(AutoresetMode.DISABLED),
    ],
    ids=["single", *(f"{where} {mode.name}" for where in ("vector", "wrapped in vector") for mode in AutoresetMode)],
)
def test_returns_are_sums_of_the_rewards_before_wrappers_change_them(make: Any, mode: Any, num_workers: int) -> None:
    with AsyncWorkerPool(make, zeros, num_workers=num_workers, mode=mode, rollout_length=7) as pool:
        seen = [rollout.episodes for rollout in pool.rollouts(Stop(episodes=6))]
        assert {value for episodes in seen for value in episodes.returns.tolist()} == {2.0 * LIVES * LIFE}
        assert {value for episodes in seen for value in episodes.lengths.tolist()} == {LIVES * LIFE}
        assert pool.statistics().mean_return == 2.0 * LIVES * LIFE


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_end_of_a_life_is_an_end_in_the_rollout_but_not_a_recorded_episode(num_workers: int) -> None:
    with AsyncWorkerPool(lives, zeros, num_workers=num_workers, mode="sync", rollout_length=LIVES * LIFE * 2) as pool:
        rollout = next(pool.rollouts())
        workers = pool.num_workers
        assert len(rollout.final_index[0]) == 2 * LIVES * workers
        assert rollout.terminated.sum() == 2 * LIVES * workers
        assert rollout.episodes.returns.tolist() == [2.0 * LIVES * LIFE] * (2 * workers)
        assert pool.statistics().episodes == 2 * workers
        assert rollout.episodes.seconds.min() >= LIVES * LIFE * STEP_S
        assert pool.evaluate(3).returns.tolist() == [2.0 * LIVES * LIFE] * 3


def test_a_stop_by_mean_return_uses_the_recorded_episodes() -> None:
    with AsyncWorkerPool(lives, zeros, num_workers=0, rollout_length=LIFE) as pool:
        stop = Stop(mean_return=2.0 * LIVES * LIFE, window=2, env_steps=1000)
        assert sum(rollout.num_steps for rollout in pool.rollouts(stop)) == 2 * LIVES * LIFE


def test_normalized_rewards_leave_the_return_raw() -> None:
    def make() -> gym.Env[Any, Any]:
        return NormalizeReward(RecordEpisodeStatistics(gym.make("CartPole-v1")))

    with AsyncWorkerPool(make, zeros, num_workers=2, num_envs=4, mode="sync", rollout_length=64) as pool:
        episodes = next(pool.rollouts()).episodes
        assert len(episodes) > 4
        assert episodes.returns.tolist() == episodes.lengths.tolist()


def test_a_gradient_over_whole_episodes_has_the_recorded_returns() -> None:
    class Ones(torch.nn.Linear):
        def forward(self, observations: Any) -> Any:
            return super().forward(observations).argmax(1)

    def loss(policy: Any, rollout: Any) -> Any:
        return policy.weight.sum() * rollout.rewards.sum()

    with AsyncWorkerPool(
        game,
        Ones(2, 2),
        num_workers=2,
        num_envs=4,
        mode="sync",
        parallelism="gradient",
        rollout_length="episode",
        loss_fn=loss,
    ) as pool:
        assert next(pool.gradients()).episodes.returns.tolist() == [2.0 * LIVES * LIFE] * 4
