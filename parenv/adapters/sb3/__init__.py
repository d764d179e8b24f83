"""What Stable-Baselines3 takes hold of: a vec env."""

try:
    import stable_baselines3.common.vec_env.base_vec_env  # noqa: F401
except ImportError as error:
    raise ImportError(
        'parenv.adapters.sb3 needs Stable-Baselines3, which is not installed: pip install "parenv[sb3]"'
    ) from error

from parenv.adapters.sb3.parallel_vec_env import ParallelVecEnv

__all__ = ["ParallelVecEnv"]
