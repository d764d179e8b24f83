"""The setting that ``ParallelVectorEnv`` chooses, against every other setting and library, on free and on busy cores.

Each case steps the same environments with the vector envs of Gymnasium and Stable-Baselines3 and with all settings of
parenv in turn. EnvPool steps its own C++ environments if it is installed and has them. The results are medians of
ratios to ``SyncVectorEnv`` in the same turn. Another part starts the vector env twenty times, and counts what is
chosen. Both run alone, and beside a busy loop for each core.

python benchmarks/choice.py
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from lib.busy import busy_loops, conditions
from lib.common import interleaved, keep
from lib.stepping import MAKERS, sampled_actions, step_rate
from stable_baselines3.common.vec_env import SubprocVecEnv

from parenv import ParallelVectorEnv

CASES = [("cartpole", 8), ("cartpole", 64), ("halfcheetah", 16), ("pong", 8), ("sleeping", 16), ("sleeping", 64)]
REPEATS, STARTS = 5, 20
DEFAULT = "parenv"
ENVPOOL_IDS = {"cartpole": "CartPole-v1", "halfcheetah": "HalfCheetah-v5", "pong": "Pong-v5"}


def settings(name: str, num_envs: int) -> dict[str, Callable[[], Any]]:
    """Return the factories of all vector envs by name, those of this project last."""
    make = MAKERS[name]
    factories, cores = [make] * num_envs, len(os.sched_getaffinity(0))

    def parenv(**options: Any) -> Callable[[], Any]:
        return lambda: ParallelVectorEnv(factories, **options)

    return {
        "SubprocVecEnv": lambda: SubprocVecEnv(factories, start_method="fork"),
        "AsyncVectorEnv": lambda: AsyncVectorEnv(factories),
        "SyncVectorEnv": lambda: SyncVectorEnv(factories),
        **({"EnvPool": lambda: envpool_of(name, num_envs, cores)} if has_envpool(name) else {}),
        DEFAULT: parenv(),
        "num_workers=0": parenv(num_workers=0),
        "num_workers=1, caller_steps=True": parenv(num_workers=1, caller_steps=True),
        f"num_workers={cores}": parenv(num_workers=cores),
        **({f"num_workers={num_envs}": parenv(num_workers=num_envs)} if name == "sleeping" else {}),
    }


def has_envpool(name: str) -> bool:
    """Tell whether EnvPool is installed and has this environment."""
    return name in ENVPOOL_IDS and importlib.util.find_spec("envpool") is not None


def envpool_of(name: str, num_envs: int, num_threads: int) -> Any:
    """Make EnvPool's own C++ environments of this kind, with a thread per core."""
    import envpool

    return envpool.make(ENVPOOL_IDS[name], env_type="gymnasium", num_envs=num_envs, num_threads=num_threads, seed=1)


def rates(name: str, num_envs: int) -> dict[str, Any]:
    """Return the ratio of each vector env to ``SyncVectorEnv``, and what parenv has chosen."""
    make = MAKERS[name]
    actions = sampled_actions(make, num_envs)
    with contextlib.ExitStack() as stack:
        envs = {}
        for system, opened in settings(name, num_envs).items():
            envs[system] = stack.enter_context(contextlib.closing(opened()))
            envs[system].reset()
        found = interleaved({system: lambda one=one: step_rate(one, actions) for system, one in envs.items()}, REPEATS)
        chosen = str(envs[DEFAULT].choice)
    ratios = {
        system: statistics.median(rate / sync for rate, sync in zip(values, found["SyncVectorEnv"], strict=True))
        for system, values in found.items()
    }
    best = max(ratio for system, ratio in ratios.items() if system.startswith("num_workers"))
    return {
        "chosen": chosen,
        "SyncVectorEnv, env steps/s": statistics.median(found["SyncVectorEnv"]),
        "ratio to SyncVectorEnv": ratios,
        "share of the best setting": ratios[DEFAULT] / best,
    }


def starts(name: str, num_envs: int) -> dict[str, int]:
    """Return how often each setting was chosen in several starts."""
    counts: Counter[str] = Counter()
    for _ in range(STARTS):
        with contextlib.closing(ParallelVectorEnv([MAKERS[name]] * num_envs)) as envs:
            counts[f"{envs.num_workers} workers, {envs.choice.num_caller_envs} sub-environments here"] += 1
    return dict(counts)


def main() -> None:
    """Measure all cases on free and on busy cores."""
    for condition, loops in conditions().items():
        with busy_loops(loops):
            results = {
                f"{name} {num_envs}": {**rates(name, num_envs), "starts": starts(name, num_envs)}
                for name, num_envs in CASES
            }
        keep("choice", condition, results)


if __name__ == "__main__":
    main()
