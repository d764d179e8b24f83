"""Time per unit by number of workers, by number of sub-environments and by size of the weights.

Each curve is the time per unit at several sizes, such as microseconds per env step with 64 and with 4,096
sub-environments. The fit is cost(n) = a + b n, so the time per unit a / n + b falls towards b. If the measured time per
unit rises, the cost grows faster than linearly.

python benchmarks/scaling.py                      all parts
python benchmarks/scaling.py workers weights ...  some parts: workers, environments, weights
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from lib import publishing, stepping, subjects
from lib.common import RESULTS, IdealLoops, ideal_loop, interleaved, processor_s, rate_alone, save
from lib.publishing import copies_s, publish_s, weighty_policy
from lib.stepping import MAKERS, bare_loop, sampled_actions, step_rate
from lib.subjects import Agent, Sleeper, zeros

from parenv import AsyncWorkerPool, ParallelVectorEnv, TorchPolicy
from parenv.pool.dispatch import CreditKey, Dispatch

REPEATS = 5
WORKERS = (1, 2, 4, 8, 16, 32, 64)
SLEEP_S, SLEEPERS_LENGTH, DECISIONS = 0.002, 64, 2000
WARM_UP_ROUNDS, MIN_ROUNDS, MIN_ROLLOUTS = 2, 6, 16
ENVIRONMENTS = (64, 256, 1024, 4096)
CARTPOLES_LENGTH, CARTPOLES_SECONDS = 16, 1.2
MEGABYTES = (0.01, 0.1, 1.0, 10.0, 100.0)
FEW_WORKERS, MIN_PUBLISHES, PUBLISHED_MEGABYTES = 2, 5, 150.0

REFERENCES = ("env step of a worker, bare", "env step, bare", "three copies")

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
        measures[f"decisions, {n}"] = lambda n=n: decisions(notes, n)
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


def decisions(notes: Notes, n: int) -> float:
    """Note and return the microseconds per rollout that the scheduler of an asynchronous pool takes by itself."""
    dispatch = Dispatch(n, prefetch=1)
    working = [*dispatch.issue()]
    began = time.process_time()
    for turn in range(DECISIONS):
        working += dispatch.issue()
        dispatch.commit(working[turn])
        working += dispatch.issue()
        key = dispatch.next()
        assert isinstance(key, CreditKey)
        dispatch.done(key)
    return notes.note("driver's processor, deciding only, async", n, (time.process_time() - began) / DECISIONS)


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


def weights() -> Samples:
    """Measure the time from the publish of 10 KB to 100 MB of weights until two workers hold a copy."""
    notes, measures = Notes(), {}
    with contextlib.ExitStack() as stack:
        for megabytes in MEGABYTES:
            rounds = max(MIN_PUBLISHES, min(1000, round(PUBLISHED_MEGABYTES / megabytes)))
            for name, seconds in published(round(1e6 * megabytes), rounds, stack).items():
                seconds()
                measures[f"{name}, {megabytes}"] = lambda name=name, megabytes=megabytes, seconds=seconds: notes.note(
                    name, megabytes, seconds() / megabytes
                )
        interleaved(measures, REPEATS)
    return notes.samples


def published(num_bytes: int, rounds: int, stack: contextlib.ExitStack) -> dict[str, Callable[[], float]]:
    """Return functions that measure seconds per publish of this many bytes, and per three copies of them, by curve.

    The stack closes the pool.
    """
    policy = weighty_policy(num_bytes)
    pool = stack.enter_context(AsyncWorkerPool("CartPole-v1", policy, num_workers=FEW_WORKERS))
    blocks = [np.zeros(num_bytes, np.uint8) for _ in range(FEW_WORKERS + 2)]
    return {
        "publish of a MB": lambda: publish_s(pool, policy, rounds),
        "three copies of a MB": lambda: copies_s(blocks, rounds),
    }


def fitted(sizes: Any, costs: Any) -> tuple[float, float]:
    """Return ``a`` and ``b`` of cost(n) = a + b n, fitted by least squares of the relative errors."""
    relative = np.stack([1 / costs, sizes / costs], axis=1)
    a, b = np.linalg.lstsq(relative, np.ones(len(costs)))[0]
    return float(a), float(b)


def curve(samples: Mapping[Size, list[float]]) -> dict[str, Any]:
    """Return the results of one curve.

    These are median and range at each size, the fit, and ratios of the median at the largest size to those at the
    smallest and the fastest size.

    Args:
        samples: Microseconds per unit by size.
    """
    medians = {size: statistics.median(values) for size, values in samples.items()}
    sizes, units = np.array(list(medians)), np.array(list(medians.values()))
    a, b = fitted(sizes, sizes * units)
    return {
        "us per unit": {
            f"{size:g}": {"median": medians[size], "min": min(values), "max": max(values)}
            for size, values in samples.items()
        },
        "fit, us": {"a": a, "b": b, "largest relative error": float(np.abs((a / sizes + b) / units - 1).max())},
        "largest over smallest": float(units[-1] / units[0]),
        "largest over cheapest": float(units[-1] / units.min()),
    }


def about_workers(curves: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the rate relative to independent processes and the number of busy cores, by mode and number of workers."""

    def medians(name: str) -> Any:
        return np.array([found["median"] for found in curves[name]["us per unit"].values()])

    sizes, shares, busy = np.array(WORKERS), {}, {}
    for mode in ("async", "sync"):
        step = medians(f"env step of a worker, {mode}")
        driver = medians(f"driver's processor, rollout of a worker, {mode}") / SLEEPERS_LENGTH
        shares[mode] = medians("env step of a worker, bare loops") / step
        busy[mode] = sizes * (medians(f"worker's processor, env step, {mode}") + driver) / step
    return {
        what: {mode: dict(zip(map(str, WORKERS), row.tolist(), strict=True)) for mode, row in found.items()}
        for what, found in (("share of the bare loops' rate", shares), ("cores busy", busy))
    }


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw a panel per part: medians with their range, and the fit as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(PARTS), figsize=(15, 6.5), layout="constrained")
    for axis, (part, (_, about, unit)) in zip(axes, PARTS.items(), strict=True):
        if part in results:
            draw_part(axis, results[part]["curves"])
        axis.set(xlabel=about, ylabel=f"time per {unit}", title=part)
    figure.suptitle("Time per unit: medians with range, and the fit (a + b n) / n as lines (flat or falling is good)")
    figure.savefig(path, dpi=110)


def draw_part(axis: Any, curves: Mapping[str, Any]) -> None:
    """Draw one panel. The legend begins with the highest curve. References are grey."""
    from matplotlib import ticker

    axis.set(xscale="log", yscale="log")
    colours = iter(
        ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:cyan")
    )
    for name, found in sorted(curves.items(), key=lambda item: -first_median(item[1])):
        draw_curve(axis, name, found, "tab:gray" if name.startswith(REFERENCES) else next(colours))
    sizes = [float(size) for size in found["us per unit"]]
    axis.set_xticks(sizes, [f"{size:,g}" for size in sizes])
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high < 30 * low else (1,)))
    axis.yaxis.set_major_formatter(ticker.EngFormatter("s"))
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.1))


def first_median(found: Mapping[str, Any]) -> float:
    """Return the median microseconds per unit at the smallest size."""
    return float(next(iter(found["us per unit"].values()))["median"])


def draw_curve(axis: Any, name: str, found: Mapping[str, Any], colour: str) -> None:
    """Draw one curve in seconds per unit: medians with their range, and the fit."""
    sizes = np.array([float(size) for size in found["us per unit"]])
    rows = found["us per unit"].values()
    median, low, high = (np.array([row[key] for row in rows]) / 1e6 for key in ("median", "min", "max"))
    bars = [median - low, high - median]
    axis.errorbar(sizes, median, bars, fmt="o", markersize=5, capsize=3, label=name, color=colour)
    dense = np.geomspace(sizes[0], sizes[-1])
    a, b = (found["fit, us"][key] / 1e6 for key in "ab")
    axis.plot(dense, a / dense + b, color=colour, linewidth=1)


PARTS: dict[str, tuple[Callable[[], Samples], str, str]] = {
    "workers": (workers, "workers, each with an environment that sleeps 2 ms", "unit: worker, env step, rollout"),
    "environments": (environments, "CartPoles on 2 workers", "env step"),
    "weights": (weights, "MB of weights, until 2 workers hold them", "MB"),
}


def main() -> None:
    """Measure the parts that the command line names, preserve the results of the others, and draw all."""
    file = RESULTS / "scaling.json"
    results: dict[str, Any] = json.loads(file.read_text())["results"] if file.exists() and sys.argv[1:] else {}
    for part in sys.argv[1:] or PARTS:
        print(part)
        curves = {name: curve(samples) for name, samples in PARTS[part][0]().items()}
        results[part] = {"curves": curves}
        if part == "workers":
            results[part] |= about_workers(curves)
    save("scaling", results)
    draw(results, RESULTS / "scaling.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for module in (publishing, stepping, subjects):
        cloudpickle.register_pickle_by_value(module)
    main()
