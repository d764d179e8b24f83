"""For Stable-Baselines3: ``accelerate`` has a model learn on parenv's workers; ``ParallelVecEnv`` is a vec env."""

try:
    import stable_baselines3.common.vec_env.base_vec_env  # noqa: F401
except ImportError as error:
    raise ImportError(
        'parenv.adapters.sb3 needs Stable-Baselines3, which is not installed: pip install "parenv[sb3]"'
    ) from error

from parenv.adapters.sb3.accelerating import AcceleratedRun, accelerate
from parenv.adapters.sb3.parallel_vec_env import ParallelVecEnv
from parenv.adapters.sb3.run_advice import RunAdvice, RunCosts

__all__ = ["AcceleratedRun", "ParallelVecEnv", "RunAdvice", "RunCosts", "accelerate"]
