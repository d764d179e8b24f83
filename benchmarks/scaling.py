"""Time per unit by number of workers and by number of sub-environments.

Each curve is the time per unit at several sizes, such as microseconds per env step with 64 and with 4,096
sub-environments. If it rises, the cost grows faster than linearly.

python benchmarks/scaling.py                  both parts
python benchmarks/scaling.py workers          one of them: workers, environments
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import torch
from lib import stepping, subjects
from lib.common import IdealLoops, ideal_loop, interleaved, keep, processor_s, rate_alone, spread
from lib.stepping import MAKERS, bare_loop, sampled_actions, step_rate
from lib.subjects import Agent, Sleeper, zeros

from parenv import AsyncWorkerPool, ParallelVectorEnv, TorchPolicy

REPEATS = 5
WORKERS = (1, 2, 4, 8, 16, 32, 64)
SLEEP_S, SLEEPERS_LENGTH = 0.002, 64
WARM_UP_ROUNDS, MIN_ROUNDS, MIN_ROLLOUTS = 2, 6, 16
ENVIRONMENTS = (64, 256, 1024, 4096)
CARTPOLES_LENGTH, CARTPOLES_SECONDS = 16, 1.2
FEW_WORKERS = 2

Size = float
Samples = Mapping[str, Mapping[Size, list[float]]]


class SteadySleeper(Sleeper):
    """Environment whose steps sleep for a constant time."""

    def step(self, action: Any) -> Any:
        """Sleep for the mean time."""
        time.sleep(self.mean_s)
        return self._observation, 0.0, False, False, {}


class Notes:
    """Microseconds per unit, by curve and size."""

    def __init__(self) -> None:
        self.samples: dict[str, dict[Size, list[float]]] = defaultdict(lambda: defaultdict(list))

    def note(self, curve: str, size: Size, seconds_per_unit: float) -> float:
        """Note a measurement and return it in microseconds.

        Args:
            curve: Name of the curve.
            size: Size, such as the number of workers.
            seconds_per_unit: Measured time per unit in seconds.
        """
        self.samples[curve][size].append(1e6 * seconds_per_unit)
        return 1e6 * seconds_per_unit


def workers() -> Samples:
    """Measure 1 to 64 workers, each with an environment that sleeps.

    In asynchronous pools, steps sleep for an exponentially distributed time. In synchronous pools, all steps sleep for
    the same time. Otherwise the result would mainly show the delay of the slowest of 64 random sleepers, which does not
    depend on the pool.
    """
    notes, measures = Notes(), {}
    sleepers = {"async": lambda: Sleeper(SLEEP_S), "sync": lambda: SteadySleeper(SLEEP_S)}
    # Forks, so it must be made before any threads start.
    loops = IdealLoops(lambda: ideal_loop(sleepers["async"], lambda observations: [0], 1), max(WORKERS), "fork")
    # Starts the fork server, so that no measurement includes its start.
    AsyncWorkerPool(Sleeper, zeros, num_workers=1).close()
    for n in WORKERS:
        measures[f"bare loops, {n}"] = lambda n=n: bare_loops_of_sleepers(notes, loops, n)
        for mode, make in sleepers.items():
            measures[f"{mode}, {n}"] = lambda mode=mode, make=make, n=n: pool_of_sleepers(notes, mode, make, n)
    interleaved(measures, REPEATS)
    loops.close()
    return notes.samples


def bare_loops_of_sleepers(notes: Notes, loops: IdealLoops, n: int) -> float:
    """Note and return the microseconds per env step of ``n`` independent processes, each with one environment."""
    seconds = rounds(n) * SLEEPERS_LENGTH * SLEEP_S
    return notes.note("env step of a worker, bare loops", n, n / loops.rate(seconds, n))


def rounds(n: int) -> int:
    """Return the number of rollouts per worker. Few workers need more, because their sleeping times are random."""
    return max(MIN_ROUNDS, MIN_ROLLOUTS // n)


def pool_of_sleepers(notes: Notes, mode: Any, make: Any, n: int) -> float:
    """Measure a pool with ``n`` workers, and return the microseconds per env step of a worker.

    The function notes times per worker start, per env step and per rollout.
    """
    began = time.perf_counter()
    with AsyncWorkerPool(make, zeros, num_workers=n, mode=mode, rollout_length=SLEEPERS_LENGTH) as pool:
        notes.note("start, per worker", n, (time.perf_counter() - began) / n)
        stream, per_round = pool.rollouts(), n if mode == "async" else 1
        pids = [pool._session.workers.pid(worker) for worker in range(n)]
        for _ in range(WARM_UP_ROUNDS * per_round):
            next(stream)
        workers_s, driver_s, began = processor_s(pids), time.process_time(), time.perf_counter()
        for _ in range(rounds(n) * per_round):
            next(stream)
        ended, driver_s = time.perf_counter(), time.process_time() - driver_s
        workers_s = processor_s(pids) - workers_s
    env_steps = n * rounds(n) * SLEEPERS_LENGTH
    notes.note(f"driver's processor, rollout of a worker, {mode}", n, driver_s / (n * rounds(n)))
    notes.note(f"worker's processor, env step, {mode}", n, workers_s / env_steps)
    return notes.note(f"env step of a worker, {mode}", n, n * (ended - began) / env_steps)


def environments() -> Samples:
    """Measure 64 to 4,096 CartPoles on two workers."""
    notes, measures = Notes(), {}
    with contextlib.ExitStack() as stack:
        for n in ENVIRONMENTS:
            for name, rate in cartpoles(n, stack).items():
                measures[f"{name}, {n}"] = lambda name=name, n=n, rate=rate: notes.note(name, n, 1 / rate())
        interleaved(measures, REPEATS)
    return notes.samples


def cartpoles(n: int, stack: contextlib.ExitStack) -> dict[str, Callable[[], float]]:
    """Return functions that measure the env steps per second of ``n`` sub-environments in two processes, by curve.

    The stack closes the processes.
    """
    make = MAKERS["cartpole"]
    actions = sampled_actions(make, n)
    loops = IdealLoops(lambda: bare_loop(make, actions[:, : n // FEW_WORKERS]), FEW_WORKERS)
    stack.callback(loops.close)
    envs = stack.enter_context(contextlib.closing(ParallelVectorEnv([make] * n, num_workers=FEW_WORKERS)))
    envs.reset()
    pool = stack.enter_context(
        AsyncWorkerPool(
            make, TorchPolicy(Agent()), num_envs=n, num_workers=FEW_WORKERS, rollout_length=CARTPOLES_LENGTH
        )
    )
    return {
        "env step, bare loops": lambda: loops.rate(CARTPOLES_SECONDS),
        "env step, ParallelVectorEnv": lambda: step_rate(envs, actions),
        "env step with MLP, async pool": lambda: rate_alone(pool, CARTPOLES_SECONDS),
    }


PARTS: dict[str, Callable[[], Samples]] = {"workers": workers, "environments": environments}


def main() -> None:
    """Measure the parts that the command line names, and preserve the results of the others."""
    for part in sys.argv[1:] or PARTS:
        print(part)
        samples = PARTS[part]()
        keep(
            "scaling",
            part,
            {
                name: {f"{size:g}": spread(values) for size, values in by_size.items()}
                for name, by_size in samples.items()
            },
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for module in (stepping, subjects):
        cloudpickle.register_pickle_by_value(module)
    main()
