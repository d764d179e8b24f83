"""Start of RLlib's env runners, including Ray."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig

from systems import rays
from systems.loops import Close, first_observation


def startup(num_workers: int) -> tuple[Any, Close]:
    """Measure the start of env runners with one environment each, until each has sampled one step."""

    def make() -> Any:
        rays.start(num_workers + 1)
        config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=num_workers)
        return config.build_algo().env_runner_group

    def sample(runners: Any) -> None:
        runners.foreach_env_runner(lambda runner: runner.sample(num_timesteps=1), local_env_runner=False)

    return first_observation(make, sample, lambda _: rays.ray.shutdown())
