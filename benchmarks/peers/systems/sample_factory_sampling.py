"""Sampling of Sample Factory without its learner, as in its example ``use_simplified_sampling_api``."""

from __future__ import annotations

import logging
from typing import Any

from environments import factory
from sample_factory.algo.sampling.simplified_sampling_api import SyncSamplingAPI
from sample_factory.algo.utils.env_info import obtain_env_info_in_a_separate_process
from sample_factory.algo.utils.rl_utils import samples_per_trajectory
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env

from systems.delivery import delivery_rate
from systems.loops import Close, Measure


def make_env(*_: Any, **__: Any) -> Any:
    """Return a CartPole. The arguments of Sample Factory are ignored."""
    return factory("cartpole")()


def configuration(num_envs: int, num_workers: int, rollout_length: int) -> Any:
    """Return the configuration of asynchronous PPO with one inference worker.

    According to the documentation of Sample Factory, one inference worker is enough for one policy.
    """
    flags = {
        "algo": "APPO",
        "env": "CartPole-v1",
        "experiment": "rollouts",
        "device": "cpu",
        "num_workers": num_workers,
        "num_envs_per_worker": num_envs // num_workers,
        "worker_num_splits": 2,
        "policy_workers_per_policy": 1,
        "rollout": rollout_length,
        "recurrence": 1,
        "batch_size": num_envs * rollout_length,
        "use_rnn": False,
        "normalize_input": False,
        "decorrelate_experience_max_seconds": 0,
        "nonlinearity": "tanh",
    }
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    parser, _ = parse_sf_args([*arguments, "--encoder_mlp_layers", "64", "64"])
    return parse_full_cfg(parser, [*arguments, "--encoder_mlp_layers", "64", "64"])


def rollouts(num_envs: int, num_workers: int, rollout_length: int) -> tuple[Measure, Close]:
    """Measure trajectories of single environments, which are copied out of the shared buffers."""
    logging.getLogger("rl").setLevel(logging.ERROR)
    register_env("CartPole-v1", make_env)
    settings = configuration(num_envs, num_workers, rollout_length)
    sampler = SyncSamplingAPI(settings, obtain_env_info_in_a_separate_process(settings))
    sampler.start()

    def collect() -> int:
        return sum(samples_per_trajectory(sampler.get_trajectories_sync()) for _ in range(num_envs))

    return delivery_rate(collect), sampler.stop
