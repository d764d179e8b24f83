"""Seconds for 96 episodes of HalfCheetah with 50 to 500 steps, with ``parenv.evaluate`` and with static batches.

``parenv.evaluate`` assigns the next episode to each sub-environment that becomes free. A static batch of 8
sub-environments waits for its longest episode, as in many hand-written evaluation scripts. The time of
``parenv.evaluate`` includes the start of its workers. The time of static batches excludes it.

python benchmarks/evaluation.py [REPEATS]
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from lib.common import interleaved, save

import parenv
from parenv import WorkerOptions
from parenv.envs.seeding import task_episode_seed

EPISODES, NUM_ENVS, SHORTEST, LONGEST, REPEATS = 96, 8, 50, 500, 7
TASK = "cheetah"


class DrawnLength(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that truncates each episode at a log-uniform random length, which the seed of the reset determines."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Draw the length of the episode and begin it."""
        drawn = np.random.default_rng(seed).uniform(np.log(SHORTEST), np.log(LONGEST))
        self.left = round(float(np.exp(drawn)))
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Take a step and truncate the episode at its length."""
        self.left -= 1
        observation, reward, terminated, _, info = self.env.step(action)
        return observation, reward, terminated, self.left <= 0, info


class Agent(torch.nn.Module):
    """MLP with two hidden layers of 256 units."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        pairs = itertools.pairwise((17, 256, 256, 6))
        self.layers = torch.nn.Sequential(*(part for one in pairs for part in (torch.nn.Linear(*one), torch.nn.Tanh())))

    def forward(self, observations: Any) -> Any:
        """Return actions ``[N, 6]`` for observations ``[N, 17]``."""
        return self.layers(observations.float())


def make_env() -> Any:
    return DrawnLength(gym.make("HalfCheetah-v5"))


def by_queue(num_workers: int) -> float:
    """Return the seconds that ``parenv.evaluate`` takes for all episodes."""
    began = time.perf_counter()
    options = WorkerOptions(preload=("torch", "gymnasium.envs.mujoco"))
    report = parenv.evaluate(
        Agent(), {TASK: make_env}, episodes=EPISODES, num_workers=num_workers, num_envs=NUM_ENVS, workers=options
    )
    assert report.overall.episodes == EPISODES
    return time.perf_counter() - began


def in_batches(envs: Any) -> float:
    """Return the seconds for all episodes in static batches. A batch runs until all of its episodes have ended."""
    agent, began = Agent(), time.perf_counter()
    for first in range(0, EPISODES, NUM_ENVS):
        seeds = [task_episode_seed(0, TASK, first + i) for i in range(NUM_ENVS)]
        observations, _ = envs.reset(seed=seeds)
        returns, over = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, bool)
        while not over.all():
            with torch.inference_mode():
                actions = agent(torch.from_numpy(observations)).numpy()
            observations, rewards, terminated, truncated, _ = envs.step(actions)
            returns += rewards * ~over
            over |= terminated | truncated
    return time.perf_counter() - began


def summary(seconds: Sequence[float], found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return median, minimum and maximum of the seconds, and the median ratio to each parenv subject per turn."""
    ratios = {
        f"times {name}": statistics.median(mine / theirs for mine, theirs in zip(seconds, others, strict=True))
        for name, others in found.items()
        if name.startswith("parenv")
    }
    return {"seconds": statistics.median(seconds), "min": min(seconds), "max": max(seconds), **ratios}


def main(repeats: int) -> None:
    """Measure all subjects in turn and save their summaries."""
    sync, apart = (kind([make_env] * NUM_ENVS) for kind in (SyncVectorEnv, AsyncVectorEnv))
    subjects: dict[str, Callable[[], float]] = {
        "SyncVectorEnv, static batches": lambda: in_batches(sync),
        "AsyncVectorEnv, static batches": lambda: in_batches(apart),
        "parenv.evaluate, 1 worker": lambda: by_queue(1),
        "parenv.evaluate, 2 workers": lambda: by_queue(2),
    }
    for run in subjects.values():
        run()  # The first run is a warm-up.
    found = interleaved(subjects, repeats, alternating=True)
    sync.close()
    apart.close()
    save("evaluation", {name: summary(seconds, found) for name, seconds in found.items()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if sys.argv[1:] else REPEATS)
