"""Stable-Baselines3: ``accelerate`` has a model learn on workers, and ``ParallelVecEnv`` is a parallel vec env."""

from parenv.adapters.library_version import needed
from parenv.libraries import install_command

with needed("sb3", "Stable-Baselines3", install_command("sb3")):
    import stable_baselines3.common.vec_env.base_vec_env  # noqa: F401

from parenv.adapters.sb3.accelerate import AcceleratedRun, accelerate
from parenv.adapters.sb3.run_advice import RunAdvice, RunCosts
from parenv.adapters.sb3.vec_env import ParallelVecEnv

__all__ = ["AcceleratedRun", "ParallelVecEnv", "RunAdvice", "RunCosts", "accelerate"]
