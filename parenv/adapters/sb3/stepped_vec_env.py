"""The environments of a model, stepped by workers while the model acts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from parenv.adapters.sb3.parallel_vec_env import ParallelVecEnv


class SteppedVecEnv(ParallelVecEnv):
    """A ``ParallelVecEnv`` that writes Monitors' files and knows how long the model has waited for it.

    Args:
        env_fns: make the environments.
        writers: by env_id, what writes the file of its Monitor.
        **options: of ``ParallelVecEnv``.

    Attributes:
        seconds: for which the model has waited for environments.
        steps: of all of them together.
        num_workers: worker processes; 0: everything is in this one.

    >>> import gymnasium as gym
    >>> envs = SteppedVecEnv([lambda: gym.make("CartPole-v1")] * 2, {}, num_workers=0)
    >>> envs.reset().shape, envs.steps
    ((2, 4), 0)
    >>> envs.close()
    """

    def __init__(self, env_fns: Any, writers: Mapping[int, ResultsWriter], **options: Any) -> None:
        super().__init__(env_fns, **options)
        self._writers = writers
        self.seconds = 0.0
        self.steps = 0
        self.num_workers = self._envs.num_workers

    def reset(self) -> VecEnvObs:
        """As ``ParallelVecEnv`` does it."""
        began = time.perf_counter()
        observations = super().reset()
        self.seconds += time.perf_counter() - began
        return observations

    def step_async(self, actions: Any) -> None:
        """As ``ParallelVecEnv`` does it."""
        began = time.perf_counter()
        super().step_async(actions)
        self.seconds += time.perf_counter() - began

    def step_wait(self) -> VecEnvStepReturn:
        """As ``ParallelVecEnv`` does it, with a line in a Monitor's file for each episode."""
        began = time.perf_counter()
        stepped = super().step_wait()
        self.seconds += time.perf_counter() - began
        self.steps += 1
        for env_id, writer in self._writers.items():
            if (episode := stepped[3][env_id].get("episode")) is not None:
                writer.write_row(episode)
        return stepped
