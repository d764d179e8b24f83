"""Processor time per env step of 64 environments that only wait, for 2 ms per step on average.

The reference is a hand-written loop with shared arrays and pipes. In the case "threads", two workers have 32 threads
each and wait for the slowest of 32 sub-environments in each step.

python benchmarks/waiting.py [WINDOWS]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from lib.by_hand import Rollouts, Steps
from lib.common import processor_s, pss_mb, save
from lib.subjects import Sleeper, zeros

from parenv import AsyncWorkerPool, ParallelVectorEnv, WorkerOptions

NUM_ENVS, ROLLOUT_LENGTH, WARM_UP_S, WINDOW_S, WINDOWS = 64, 128, 0.4, 1.5, 15
PRELOAD = ("lib.subjects",)
STEPPING = ("steps by hand", "send/recv")
Run = Callable[[float], int]


def pool(num_workers: int, step_threads: int) -> tuple[Run, Sequence[int], Callable[[], None]]:
    """Make a pool.

    Args:
        num_workers: Number of workers.
        step_threads: Number of threads per worker.

    Returns:
        Function that takes rollouts for a time in seconds and returns the number of env steps, process ids of the
        workers, and a function that closes the pool.
    """
    options = WorkerOptions(step_threads=step_threads, preload=PRELOAD)
    opened = AsyncWorkerPool(
        Sleeper, zeros, num_envs=NUM_ENVS, num_workers=num_workers, rollout_length=ROLLOUT_LENGTH, workers=options
    )
    stream = opened.rollouts()

    def run(seconds: float) -> int:
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            steps += next(stream).num_steps
        return steps

    return run, [opened._session.workers.pid(worker) for worker in range(num_workers)], opened.close


def vector_env() -> tuple[Run, Sequence[int], Callable[[], None]]:
    """Make a vector env that sends and receives 8 sub-environments at a time, and return the same as :func:`pool`."""
    options = WorkerOptions(preload=PRELOAD)
    envs = ParallelVectorEnv([Sleeper] * NUM_ENVS, num_workers=NUM_ENVS, batch_size=8, workers=options)
    envs.reset(seed=0)
    envs.send(np.zeros(NUM_ENVS, np.int64), np.arange(NUM_ENVS))
    actions = np.zeros(8, np.int64)

    def run(seconds: float) -> int:
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            infos = envs.recv()[4]
            envs.send(actions, infos["env_id"])
            steps += 8
        return steps

    return run, [envs._session.backend.workers.pid(worker) for worker in range(NUM_ENVS)], envs.close


def measured(run: Run, pids: Sequence[int]) -> dict[str, float]:
    """Return env steps per second, and the processor time per env step of this and other processes in microseconds.

    The processor time and its env steps include the warm-up. The workers are idle at both readings, so that the counted
    time belongs to the counted steps.
    """
    all_pids = [os.getpid(), *pids]
    before = processor_s(all_pids)
    ready_before = run(WARM_UP_S)
    began = time.perf_counter()
    env_steps = run(WINDOW_S)
    elapsed = time.perf_counter() - began
    wait_until_idle(pids)
    cost = (processor_s(all_pids) - before) / (ready_before + env_steps)
    return {"env steps/s": env_steps / elapsed, "us per env step": 1e6 * cost}


def wait_until_idle(pids: Sequence[int]) -> None:
    """Wait until these processes use no processor time for 0.1 s."""
    before = -1.0
    while (now := processor_s(pids)) != before:
        before = now
        time.sleep(0.1)


def summary(found: Sequence[dict[str, float]], reference: Sequence[dict[str, float]], pids: Sequence[int]) -> Any:
    """Return medians of the windows, the number of processes, and their PSS in MB.

    The ratio to the reference is the median over pairs of windows.
    """
    cost = "us per env step"
    pairs = [mine[cost] / other[cost] for mine, other in zip(found, reference, strict=True)]
    return {
        **{name: statistics.median(one[name] for one in found) for name in found[0]},
        "by hand = 1": statistics.median(pairs),
        "processes": len(pids),
        "MB": pss_mb(pids),
    }


def main(windows: int) -> None:
    """Measure all subjects in turn, many times, so that other load on the machine affects all of them equally."""
    by_hand = Rollouts(Sleeper, zeros, NUM_ENVS, ROLLOUT_LENGTH)
    stepping = Steps(Sleeper, NUM_ENVS, NUM_ENVS)
    subjects = {
        "rollouts by hand": (by_hand.run, by_hand.pids, by_hand.close),
        "pool": pool(NUM_ENVS, 1),
        "pool, threads": pool(2, NUM_ENVS // 2),
        "steps by hand": (stepping.run, stepping.pids, stepping.close),
        "send/recv": vector_env(),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in subjects}
    for _ in range(windows):
        for name, (run, pids, _) in subjects.items():
            found[name].append(measured(run, pids))
            print(name, found[name][-1], flush=True)
    references = {name: f"{'steps' if name in STEPPING else 'rollouts'} by hand" for name in found}
    results = {name: summary(found[name], found[references[name]], subjects[name][1]) for name in found}
    for _, _, close in subjects.values():
        close()
    save("waiting", results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if sys.argv[1:] else WINDOWS)
