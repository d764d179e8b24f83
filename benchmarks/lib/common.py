"""Shared parts of the benchmarks: the ideal loop, interleaved repeats, facts about the machine, results as JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import torch

RESULTS = Path(__file__).parents[1] / "results"


def machine() -> dict[str, Any]:
    """Return facts about this machine and installed packages."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "gymnasium": gym.__version__,
        "date": date.today().isoformat(),
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
    }


def interleaved(
    measures: Mapping[str, Callable[[], float]], repeats: int, alternating: bool = False
) -> dict[str, list[float]]:
    """Measure all in turn, several times, so that a drift of the machine meets all alike.

    Args:
        measures: by name.
        repeats: how often.
        alternating: whether every other turn is in the reverse order, so that a steady drift meets no one first.
    """
    found: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(repeats):
        names = reversed(measures) if alternating and turn % 2 else iter(measures)
        for name in names:
            found[name].append(measures[name]())
            print(f"  {name}: {found[name][-1]:,.4g}", flush=True)
    return found


def summary(found: Mapping[str, Sequence[float]], reference: str) -> dict[str, Any]:
    """Return median, minimum and maximum of each series, and the ratio of its median to the reference's."""
    base = statistics.median(found[reference])
    return {
        name: {
            "median": statistics.median(values),
            "min": min(values),
            "max": max(values),
            f"ratio_to_{reference}": statistics.median(values) / base,
        }
        for name, values in found.items()
    }


def save(name: str, results: Mapping[str, Any]) -> None:
    """Write results with the machine's facts to ``results/NAME.json``, and print them."""
    RESULTS.mkdir(exist_ok=True)
    script = Path(sys.argv[0]).resolve().relative_to(RESULTS.parents[1])
    command = f"python {script}"
    content = {"command": command, "machine": machine(), "results": results}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def keep(name: str, case: str, found: Any) -> None:
    """Write the results of one case, beside those of the other cases that ``results/NAME.json`` has."""
    file = RESULTS / f"{name}.json"
    save(name, {**(json.loads(file.read_text())["results"] if file.exists() else {}), case: found})


def nature_body() -> torch.nn.Sequential:
    """The convolutions of Mnih et al. 2015, from ``[N, 4, 84, 84]`` to ``[N, 512]``."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
    )  # fmt: skip


class IdealLoops:
    """Independent processes that do the same work: the upper bound.

    Args:
        loop: ``(seconds) -> env steps``, made in the process by ``make_loop()``.
        count: how many processes.
        start_method: how they are started; ``"fork"`` is fast, and only for a process that has no threads yet.
    """

    def __init__(
        self, make_loop: Callable[[], Callable[[float], int]], count: int, start_method: str = "spawn"
    ) -> None:
        context: Any = multiprocessing.get_context(start_method)
        self._pipes, self._processes = [], []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve_loop, args=(theirs, cloudpickle.dumps(make_loop)), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def rate(self, seconds: float, count: int | None = None) -> float:
        """Return env steps per second of all processes, or of the first ``count`` while the others wait."""
        pipes = self._pipes[:count]
        for pipe in pipes:
            pipe.send(seconds)
        return sum(pipe.recv() for pipe in pipes)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _serve_loop(pipe: Any, pickled: bytes) -> None:
    torch.set_num_threads(1)
    loop = cloudpickle.loads(pickled)()
    loop(0.2)
    pipe.send("ready")
    while True:
        seconds = pipe.recv()
        began = time.perf_counter()
        steps = loop(seconds)
        pipe.send(steps / (time.perf_counter() - began))


def ideal_loop(make_env: Callable[[], Any], act: Callable[[Any], Any], num_envs: int) -> Callable[[float], int]:
    """Make the plain loop: act on a batch, step each environment, reset ended episodes, keep observations."""
    envs = [make_env() for _ in range(num_envs)]
    steps = [env.step for env in envs]
    observations = np.stack([env.reset()[0] for env in envs])

    def run(seconds: float) -> int:
        count, deadline = 0, time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            for i, action in enumerate(act(observations)):
                observation, _, terminated, truncated, _ = steps[i](action)
                if terminated or truncated:
                    observation, _ = envs[i].reset()
                observations[i] = observation
            count += num_envs
        return count

    return run


def consumption_rate(pool: Any, seconds: float, learn: Callable[[Any], None] | None = None) -> float:
    """Env steps per second at which a pool delivers."""
    stream, steps = pool.rollouts(), 0
    for _ in range(3 * pool.num_workers):  # Rollouts that were ready before must not count.
        next(stream)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        rollout = next(stream)
        steps += rollout.num_steps
        if learn is not None:
            learn(rollout)
    return steps / (time.perf_counter() - began)


def rate_alone(pool: Any, seconds: float, learn: Callable[[Any], None] | None = None) -> float:
    """Measure the rate, then wait for rollouts in progress, so that the next measurement has the cores to itself."""
    rate = consumption_rate(pool, seconds, learn)
    pool.synchronize()
    time.sleep(0.5)
    return rate


def pss_mb(pids: Sequence[int]) -> float:
    """Proportional set size of processes together, in MB."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def processor_s(pids: Sequence[int]) -> float:
    """Processor seconds that all threads of these processes have had together."""
    threads = (file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in threads) / 1e9
