"""The setting that ``ParallelVectorEnv`` chooses, against every other setting, on free and on busy cores.

Each case steps the same environments with Gymnasium's vector envs and with all settings of parenv in turn. The results
are medians of ratios to ``SyncVectorEnv`` in the same turn. Another part starts the vector env twenty times, and counts
what is chosen. Both run alone, and beside a busy loop for each core.

python benchmarks/choice.py
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from lib.common import interleaved, keep
from lib.stepping import MAKERS, sampled_actions, step_rate

from parenv import ParallelVectorEnv

CASES = [("cartpole", 8), ("cartpole", 64), ("halfcheetah", 16), ("pong", 8), ("sleeping", 16), ("sleeping", 64)]
REPEATS, STARTS = 5, 20
DEFAULT = "parenv"


def settings(make: Callable[[], Any], num_envs: int) -> dict[str, Callable[[], Any]]:
    """Return the factories of all vector envs by name."""
    factories, cores = [make] * num_envs, len(os.sched_getaffinity(0))

    def parenv(**options: Any) -> Callable[[], Any]:
        return lambda: ParallelVectorEnv(factories, **options)

    return {
        "SyncVectorEnv": lambda: SyncVectorEnv(factories),
        "AsyncVectorEnv": lambda: AsyncVectorEnv(factories),
        DEFAULT: parenv(),
        "num_workers=0": parenv(num_workers=0),
        "num_workers=1, caller_steps=True": parenv(num_workers=1, caller_steps=True),
        f"num_workers={cores}": parenv(num_workers=cores),
        **({f"num_workers={num_envs}": parenv(num_workers=num_envs)} if make is MAKERS["sleeping"] else {}),
    }


def rates(name: str, num_envs: int) -> dict[str, Any]:
    """Return the ratio of each vector env to ``SyncVectorEnv``, and what parenv has chosen."""
    make = MAKERS[name]
    actions = sampled_actions(make, num_envs)
    with contextlib.ExitStack() as stack:
        envs = {}
        for system, opened in settings(make, num_envs).items():
            envs[system] = stack.enter_context(contextlib.closing(opened()))
            envs[system].reset(seed=1)
        found = interleaved({system: lambda one=one: step_rate(one, actions) for system, one in envs.items()}, REPEATS)
        chosen = str(envs[DEFAULT].choice)
    ratios = {
        system: statistics.median(rate / sync for rate, sync in zip(values, found["SyncVectorEnv"], strict=True))
        for system, values in found.items()
    }
    best = max(ratio for system, ratio in ratios.items() if system not in (DEFAULT, "SyncVectorEnv", "AsyncVectorEnv"))
    share = ratios[DEFAULT] / best
    return {"chosen": chosen, "ratio to SyncVectorEnv": ratios, "share of the best setting": share}


def starts(name: str, num_envs: int) -> dict[str, int]:
    """Return how often each setting was chosen in several starts."""
    counts: Counter[str] = Counter()
    for _ in range(STARTS):
        with contextlib.closing(ParallelVectorEnv([MAKERS[name]] * num_envs)) as envs:
            counts[f"{envs.num_workers} workers, {envs.choice.num_caller_envs} sub-environments here"] += 1
    return dict(counts)


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run processes beside the block that only compute."""
    loops = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def _spin() -> None:
    while True:
        pass


def main() -> None:
    """Measure all cases on free and on busy cores."""
    for condition, loops in (("free cores", 0), ("a busy loop per core", len(os.sched_getaffinity(0)))):
        with busy_loops(loops):
            results = {
                f"{name} {num_envs}": {**rates(name, num_envs), "starts": starts(name, num_envs)}
                for name, num_envs in CASES
            }
        keep("choice", condition, results)


if __name__ == "__main__":
    main()
