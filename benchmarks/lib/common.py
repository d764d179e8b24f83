"""Shared functions of the benchmarks: the ideal loop, interleaved repeats, facts about the machine, JSON results."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import platform
import re
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

from parenv.platform import system

RESULTS = Path(__file__).parents[1] / "results"


def machine() -> dict[str, Any]:
    """Return facts about this machine and its installed packages."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {
        "cpu": cpu,
        "cores": len(system.usable_core_numbers()),
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
    """Measure all subjects in turn, several times, so that a drift of the machine affects all of them equally.

    Args:
        measures: Functions that return one value each, by name.
        repeats: Number of turns.
        alternating: Whether every second turn has the reverse order, so that a steady drift favours no subject.

    Returns:
        Values by name, in the order of the turns.
    """
    found: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(repeats):
        names = reversed(measures) if alternating and turn % 2 else iter(measures)
        for name in names:
            found[name].append(measures[name]())
            print(f"  {name}: {found[name][-1]:,.4g}", flush=True)
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return number, median and range of a series."""
    return {"n": len(values), "median": statistics.median(values), "min": min(values), "max": max(values)}


def summary(found: Mapping[str, Sequence[float]], reference: str) -> dict[str, Any]:
    """Return number, median and range of each series, and the ratio of its median to the reference's median."""
    base = statistics.median(found[reference])
    return {
        name: {**spread(values), f"ratio_to_{reference}": statistics.median(values) / base}
        for name, values in found.items()
    }


def save(name: str, results: Mapping[str, Any]) -> None:
    """Print results and write them to ``results/NAME.json``, with the command and facts about the machine.

    The repository keeps these files, so they have medians and ranges, and not every sample.
    """
    RESULTS.mkdir(exist_ok=True)
    script = Path(sys.argv[0]).resolve().relative_to(RESULTS.parents[1])
    content = {"command": f"python {script}", "machine": machine(), "results": rounded(results)}
    (RESULTS / f"{name}.json").write_text(as_json(content))
    print(as_json(content["results"]))


def rounded(value: Any) -> Any:
    """Return results whose floats have seven significant digits.

    >>> rounded({"median": 0.123456789, "n": 5, "curve": [1234567.2, 2.0]})
    {'median': 0.1234568, 'n': 5, 'curve': [1234567.0, 2.0]}
    """
    if isinstance(value, Mapping):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def as_json(content: Any) -> str:
    """Return JSON with one line for each list of numbers."""
    text = json.dumps(content, indent=1)
    return re.sub(r"\[[^][{}\"]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


def save_picture(figure: Any, name: str, dpi: int) -> None:
    """Write a figure of matplotlib to ``results/NAME.png``, with a white background and at most 64 colours."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi, facecolor="white")
    Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(RESULTS / f"{name}.png", optimize=True)


def keep(name: str, case: str, found: Any) -> None:
    """Write the results of one case to ``results/NAME.json`` and preserve the results of other cases."""
    file = RESULTS / f"{name}.json"
    save(name, {**(json.loads(file.read_text())["results"] if file.exists() else {}), case: found})


def nature_body() -> torch.nn.Sequential:
    """Make the convolutional network of Mnih et al. 2015, from ``[N, 4, 84, 84]`` to ``[N, 512]``."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
    )  # fmt: skip


class IdealLoops:
    """Independent processes that do the same work: the upper bound.

    Args:
        make_loop: Function that each process calls to make its loop, ``(seconds) -> env steps``.
        count: Number of processes.
        start_method: Start method of ``multiprocessing``. ``"fork"`` is fast, but the calling process must not have
            threads yet.
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
        """Return env steps per second of all processes together, or of the first ``count`` while the others wait."""
        pipes = self._pipes[:count]
        for pipe in pipes:
            pipe.send(seconds)
        return sum(pipe.recv() for pipe in pipes)

    def close(self) -> None:
        """Kill the processes."""
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
    """Make a loop ``(seconds) -> env steps`` that acts on a batch, steps each environment and resets ended episodes.

    It stores only the current observations.
    """
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
    """Return the env steps per second that a pool delivers, with an optional learner that gets each rollout."""
    stream, steps = pool.rollouts(), 0
    for _ in range(3 * pool.num_workers):  # Rollouts from before the measurement must not count.
        next(stream)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        rollout = next(stream)
        steps += rollout.num_steps
        if learn is not None:
            learn(rollout)
    return steps / (time.perf_counter() - began)


def rate_alone(pool: Any, seconds: float, learn: Callable[[Any], None] | None = None) -> float:
    """Return the rate of :func:`consumption_rate`, after waiting until the workers of the pool are idle.

    The next measurement therefore has all cores to itself.
    """
    rate = consumption_rate(pool, seconds, learn)
    pool.synchronize()
    time.sleep(0.5)
    return rate


def pss_mb(pids: Sequence[int]) -> float:
    """Return the sum of the proportional set sizes of processes, in MB (2**20 bytes)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def processor_s(pids: Sequence[int]) -> float:
    """Return the processor time of all threads of these processes together, in seconds."""
    threads = (file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in threads) / 1e9
