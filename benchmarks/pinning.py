"""Is a vector env faster if each worker may use only one core, or only the cores of one NUMA node?

The same two workers step in turn with one core each, with the cores of one NUMA node each, and with all cores, alone
and beside busy loops.

python benchmarks/pinning.py
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lib.busy import busy_loops, conditions
from lib.common import interleaved, keep
from lib.stepping import MAKERS, sampled_actions, step_rate

from parenv import ParallelVectorEnv
from parenv.platform import system

CASES = [("cartpole", 64), ("halfcheetah", 16)]
WORKERS, REPEATS = 2, 21
ALL_CORES = "all cores"


def sets() -> Mapping[str, Sequence[Sequence[int]]]:
    """Return the cores of each worker, by the name of the rule."""
    cores = sorted(os.sched_getaffinity(0))
    nodes = system.numa_nodes(cores) or [cores]
    return {
        ALL_CORES: [cores] * WORKERS,
        "one core each": [[cores[worker % len(cores)]] for worker in range(WORKERS)],
        "the cores of one NUMA node": [nodes[worker % len(nodes)] for worker in range(WORKERS)],
    }


def ratios(name: str, num_envs: int) -> dict[str, Any]:
    """Return the rate with each rule, as the median ratio to workers that may use all cores."""
    make = MAKERS[name]
    actions = sampled_actions(make, num_envs)
    with contextlib.closing(ParallelVectorEnv([make] * num_envs, num_workers=WORKERS)) as envs:
        envs.reset(seed=1)
        pids = [envs._session.backend.workers.pid(worker) for worker in range(WORKERS)]

        def rate(cores: Sequence[Sequence[int]]) -> float:
            for pid, own in zip(pids, cores, strict=True):
                os.sched_setaffinity(pid, own)
            return step_rate(envs, actions)

        found = interleaved(
            {rule: lambda cores=cores: rate(cores) for rule, cores in sets().items()}, REPEATS, alternating=True
        )
    return {
        rule: {
            "env steps/s": statistics.median(values),
            f"ratio to {ALL_CORES}": statistics.median(
                one / free for one, free in zip(values, found[ALL_CORES], strict=True)
            ),
        }
        for rule, values in found.items()
    }


if __name__ == "__main__":
    for condition, loops in {**conditions(), "one busy loop": 1}.items():
        with busy_loops(loops):
            keep("pinning", condition, {f"{name} {n}": ratios(name, n) for name, n in CASES})
