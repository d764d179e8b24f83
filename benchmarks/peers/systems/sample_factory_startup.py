"""Start of Sample Factory's sampling, including its inference worker."""

from __future__ import annotations

import logging
from typing import Any

from sample_factory.algo.sampling.simplified_sampling_api import SyncSamplingAPI
from sample_factory.algo.utils.env_info import obtain_env_info_in_a_separate_process
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env

from systems.loops import Close, first_observation
from systems.sample_factory_sampling import make_env


def startup(num_workers: int) -> tuple[Any, Close]:
    """Measure the start of a worker for each environment, until the first trajectory, which has one step."""
    logging.getLogger("rl").setLevel(logging.ERROR)
    register_env("CartPole-v1", make_env)
    return first_observation(
        lambda: _sampler(num_workers), lambda sampler: sampler.get_trajectories_sync(), lambda sampler: sampler.stop()
    )


def _sampler(num_workers: int) -> SyncSamplingAPI:
    flags = {
        "algo": "APPO",
        "env": "CartPole-v1",
        "experiment": "startup",
        "device": "cpu",
        "num_workers": num_workers,
        "num_envs_per_worker": 1,
        "worker_num_splits": 1,
        "policy_workers_per_policy": 1,
        "rollout": 1,
        "recurrence": 1,
        "batch_size": num_workers,
        "use_rnn": False,
        "decorrelate_experience_max_seconds": 0,
    }
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    parser, _ = parse_sf_args(arguments)
    settings = parse_full_cfg(parser, arguments)
    sampler = SyncSamplingAPI(settings, obtain_env_info_in_a_separate_process(settings))
    sampler.start()
    return sampler
