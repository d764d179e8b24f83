"""Overhead of a trace: rates of a pool with and without it in turn, and its processor time in the main process.

python benchmarks/tracing.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from lib.common import consumption_rate, interleaved, rate_alone, save, summary
from lib.subjects import Agent

from parenv import AsyncWorkerPool, TorchPolicy
from parenv.pool.events import Asked, Observer, PoolEvent

SECONDS, REPEATS = 2.0, 9
NUM_ENVS, WORKERS, ROLLOUT_LENGTH = 64, 2, 128


class Stopwatch:
    """Observer that passes events to a trace and measures the processor time of the calling thread.

    Args:
        trace: Observer that writes the trace.

    Attributes:
        seconds: Processor time so far.
        asks: Number of events of type ``Asked`` so far, one per requested rollout.
    """

    def __init__(self, trace: Any) -> None:
        self._trace, self.seconds, self.asks = trace, 0.0, 0

    def hear(self, event: PoolEvent) -> None:
        """Pass an event to the trace."""
        self.asks += isinstance(event, Asked)
        began = time.thread_time()
        self._trace.hear(event)
        self.seconds += time.thread_time() - began


def measure(mode: Any, path: Path) -> dict[str, Any]:
    """Measure one pool with and without its trace, in a loop that publishes after every rollout.

    Args:
        mode: Mode of the pool.
        path: File for the trace.
    """
    policy = TorchPolicy(Agent())
    with AsyncWorkerPool(
        lambda: gym.make("CartPole-v1"), policy, num_envs=NUM_ENVS, num_workers=WORKERS, mode=mode,
        rollout_length=ROLLOUT_LENGTH,
    ) as pool:  # fmt: skip
        session: Any = pool._session
        pool.trace(path)
        trace = session._observers[1]

        def rate(traced: bool) -> float:
            # The API cannot end a trace before the pool is closed, and two pools would differ in more than the trace.
            session._observers[1] = trace if traced else Observer()
            return rate_alone(pool, SECONDS, lambda rollout: pool.publish(policy))

        arms = {"without": lambda: rate(False), "traced": lambda: rate(True)}
        found = interleaved(arms, REPEATS, alternating=True)
        direct = driver_time(pool, policy, trace)
        session._observers[1] = trace
    return {
        "env steps per second": summary(found, "without"),
        "cost, share": cost(found["without"], found["traced"]),
        "the trace by itself": direct,
    }


def cost(without: list[float], traced: list[float]) -> dict[str, float]:
    """Return the relative loss of rate by tracing, from pairs of consecutive measurements."""
    pairs = [1 - slower / faster for slower, faster in zip(traced, without, strict=True)]
    quarters = statistics.quantiles(pairs)
    return {
        "median": quarters[1],
        "quartile_1": quarters[0],
        "quartile_3": quarters[2],
        "standard_error_of_mean": statistics.stdev(pairs) / len(pairs) ** 0.5,
    }


def driver_time(pool: Any, policy: Any, trace: Any) -> dict[str, float]:
    """Return the trace's processor time per rollout in microseconds, and its share of the time between rollouts."""
    pool._session._observers[1] = watch = Stopwatch(trace)
    began = time.perf_counter()
    consumption_rate(pool, 3 * SECONDS, lambda rollout: pool.publish(policy))
    interval_s = (time.perf_counter() - began) / watch.asks
    return {
        "us_per_rollout": 1e6 * watch.seconds / watch.asks,
        "us_between_rollouts": 1e6 * interval_s,
        "share": watch.seconds / watch.asks / interval_s,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        save("tracing", {mode: measure(mode, Path(directory) / f"{mode}.json") for mode in ("async", "sync")})
