"""Steps and start-up of sub-environments in another interpreter, measured in turn with ordinary workers.

The other interpreter runs the same Python, so the results differ only by the overhead of a separate interpreter.

python benchmarks/interpreters.py
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from typing import Any

from lib.common import interleaved, save
from lib.stepping import sampled_actions, step_rate

from parenv import ParallelVectorEnv, WorkerOptions, entry_point

WORKERS, REPEATS, STARTS = 2, 15, 5
CASES = {"cartpole-64": ("CartPole-v1", 64), "halfcheetah-16": ("HalfCheetah-v5", 16)}
OPTIONS = {"ordinary worker": None, "another interpreter": sys.executable}


def make_envs(name: str, num_envs: int, python: str | None) -> ParallelVectorEnv:
    """Make a vector env with two workers that do not spin.

    Args:
        name: Gymnasium id of the environment.
        num_envs: Number of sub-environments.
        python: Path of the other interpreter, or ``None`` for ordinary workers.
    """
    return ParallelVectorEnv(
        [entry_point(name)] * num_envs,
        num_workers=WORKERS,
        caller_steps=False,
        spin_us=0,
        workers=WorkerOptions(python=python),
    )


def stepping(name: str, num_envs: int) -> dict[str, Any]:
    """Measure the env steps per second of both kinds of workers in turn.

    The ratio is the median of the ratios within a turn.
    """
    with contextlib.ExitStack() as stack:
        measures = {}
        for kind, python in OPTIONS.items():
            envs = stack.enter_context(contextlib.closing(make_envs(name, num_envs, python)))
            envs.reset(seed=0)
            actions = sampled_actions(entry_point(name), num_envs)
            measures[kind] = lambda envs=envs, actions=actions: step_rate(envs, actions)
        found = interleaved(measures, REPEATS)
    ours, theirs = found["ordinary worker"], found["another interpreter"]
    ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    return {
        **{kind: round(statistics.median(rates)) for kind, rates in found.items()},
        "seconds per step, ratio": ratio,
    }


def starting() -> dict[str, Any]:
    """Measure the seconds until the first observation of 8 CartPoles in 2 workers, with running fork servers."""
    found: dict[str, list[float]] = {kind: [] for kind in OPTIONS}
    for _ in range(STARTS + 1):
        for kind, python in OPTIONS.items():
            began = time.perf_counter()
            with contextlib.closing(make_envs("CartPole-v1", 8, python)) as envs:
                envs.reset(seed=0)
                found[kind].append(time.perf_counter() - began)
    return {kind: round(statistics.median(seconds[1:]), 3) for kind, seconds in found.items()}


if __name__ == "__main__":
    results: dict[str, Any] = {case: stepping(*of_case) for case, of_case in CASES.items()}
    results["start_s"] = starting()
    save("interpreters", results)
