"""Steps per second and processor time of a vector env and of a hand-written loop, in alternating windows.

The loop in `lib/by_hand.py` uses pipes and arrays in shared memory. It has no infos, error handling, time limits or
spaces other than arrays.

python benchmarks/by_hand.py                  all cases
python benchmarks/by_hand.py cartpole-64 ...  some cases: cartpole-8, cartpole-64, lunarlander-16, halfcheetah-16
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import psutil
from lib.by_hand import Steps
from lib.common import IdealLoops, keep
from lib.stepping import MAKERS, bare_loop, sampled_actions

from parenv import ParallelVectorEnv

WORKERS, WINDOW_S, WINDOWS, WARM_UPS = 2, 0.15, 21, 2
CASES = {"cartpole-8": 8, "cartpole-64": 64, "lunarlander-16": 16, "halfcheetah-16": 16}
LIMIT, BY_HAND, SYNC = "two bare loops", "by hand", "SyncVectorEnv"


class Window(NamedTuple):
    """Results of one window.

    Args:
        rate: Env steps per second.
        driver_us: Processor time of this process per step of all sub-environments, in microseconds.
        worker_us: Mean processor time of a worker per step of all sub-environments, in microseconds.
    """

    rate: float
    driver_us: float
    worker_us: float


def window(envs: Any, actions: Any, processes: Sequence[int]) -> Window:
    """Step for the time of a window and return its results.

    Args:
        envs: Vector env.
        actions: Batches of actions, ``[64, num_envs, ...]``.
        processes: Process ids of the workers.
    """
    workers = [psutil.Process(pid) for pid in processes]
    before, own = sum(map(_processor_s, workers)), time.process_time()
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < WINDOW_S:
        for _ in range(8):
            envs.step(actions[count % 64])
            count += 1
    driver_us = (time.process_time() - own) / count * 1e6
    worker_us = (sum(map(_processor_s, workers)) - before) / max(1, len(workers)) / count * 1e6
    return Window(count * actions.shape[1] / elapsed, driver_us, worker_us)


def _processor_s(process: psutil.Process) -> float:
    with open(f"/proc/{process.pid}/schedstat") as file:
        return int(file.read().split()[0]) * 1e-9


def compare(case: str) -> dict[str, Any]:
    """Measure all systems in turn. Return medians of the windows, and medians of the ratios within a turn."""
    name, num_envs = case.split("-")[0], CASES[case]
    make = MAKERS[name]
    actions, factories = sampled_actions(make, num_envs), [make] * num_envs
    with contextlib.ExitStack() as stack:
        by_hand = Steps(make, num_envs, WORKERS)  # Forks, so it must be made before any threads start.
        loops = IdealLoops(lambda: bare_loop(make, actions[:, : num_envs // WORKERS]), WORKERS)
        stack.callback(loops.close)
        stepped: dict[str, Any] = {
            BY_HAND: by_hand,
            SYNC: gym.vector.SyncVectorEnv(factories),
            "parenv, two workers": ParallelVectorEnv(factories, num_workers=WORKERS),
            "parenv, caller and one worker": ParallelVectorEnv(factories, num_workers=1, caller_steps=True),
            "parenv, the same, spin_us=100": ParallelVectorEnv(
                factories, num_workers=1, caller_steps=True, spin_us=100
            ),
            "parenv, the same, spin_us=0": ParallelVectorEnv(factories, num_workers=1, caller_steps=True, spin_us=0),
        }
        found: dict[str, list[Window]] = {LIMIT: [], **{name: [] for name in stepped}}
        for envs in stepped.values():
            stack.callback(envs.close)
            envs.reset()
        for _ in range(WARM_UPS + WINDOWS):
            found[LIMIT].append(Window(loops.rate(WINDOW_S), 0.0, 0.0))
            for name, envs in stepped.items():
                found[name].append(window(envs, actions, _workers(envs)))
    return _summary({name: windows[WARM_UPS:] for name, windows in found.items()})


def _workers(envs: Any) -> list[int]:
    if isinstance(envs, ParallelVectorEnv):
        workers = envs._session.backend.workers  # type: ignore[attr-defined]
        return [workers.pid(worker) for worker in range(envs.num_workers)]
    return list(getattr(envs, "pids", ()))


def _summary(found: dict[str, list[Window]]) -> dict[str, Any]:
    def ratio(name: str, reference: str) -> float:
        pairs = zip(found[name], found[reference], strict=True)
        return round(statistics.median(one.rate / other.rate for one, other in pairs), 3)

    return {
        name: {
            "env_steps_per_s": round(statistics.median(one.rate for one in windows)),
            "driver_us": round(statistics.median(one.driver_us for one in windows), 1),
            "worker_us": round(statistics.median(one.worker_us for one in windows), 1),
            **{f"ratio_to_{reference}": ratio(name, reference) for reference in (LIMIT, BY_HAND, SYNC)},
        }
        for name, windows in found.items()
    }


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        found = compare(case)
        keep("by_hand", case, found)
        print(case)
        for name, one in found.items():
            print(f"  {name:32}", *one.values())
