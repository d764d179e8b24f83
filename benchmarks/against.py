"""Speed of this checkout compared with another one, measured in alternating slices of 80 ms.

Each case has one process per checkout and alternates between them, so that other load on the machine affects both
equally. Both processes restart several times, because two processes of the same program also differ by about one
percent. The script prints the ratio of new to old, as the median over all pairs of slices with its quartiles. One ratio
is for env steps per second, the other for env steps per second of processor time, including workers. If a case has no
workers, both processes use the same core.

python benchmarks/against.py OLD_CHECKOUT [--new CHECKOUT] [--rounds 5] [--pairs 40] [CASE ...]
python benchmarks/against.py . --posix

The second command compares the layer for any POSIX system with the layer of Linux in this checkout, where workers are
processes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import torch
from lib.checkouts import Server

HERE = Path(__file__).parents[1]
SLICE_S, WARM_UP_SLICES = 0.08, 5


def make_env() -> Any:
    """Make a CartPole, whose steps take only a few microseconds."""
    return gym.make("CartPole-v1")


def numpy_policy() -> Any:
    """Make a policy that returns random actions."""
    rng = np.random.default_rng(0)
    return lambda observations: rng.integers(2, size=len(observations))


class TorchAgent(torch.nn.Module):
    """MLP with layers of 4, 32 and 2 units, which acts greedily."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))

    def forward(self, observations: Any) -> Any:
        """Return the index of the largest output for each observation."""
        return self.body(observations).argmax(-1)


def pool_steps(num_envs: int, num_workers: int, make_policy: Callable[[], Any]) -> Iterator[int]:
    """Collect rollouts without end and yield the number of env steps of each."""
    from parenv import AsyncWorkerPool

    pool = AsyncWorkerPool(
        make_env, make_policy(), num_envs=num_envs, num_workers=num_workers, mode="sync", rollout_length=128, seed=0
    )
    with pool:
        for rollout in pool.rollouts():
            yield rollout.rewards.size


def vector_steps(num_envs: int, num_workers: int) -> Iterator[int]:
    """Step a vector env without end and yield the number of env steps after every 20 calls of ``step``."""
    from parenv import ParallelVectorEnv

    actions = np.random.default_rng(0).integers(2, size=(1000, num_envs))
    with contextlib.closing(ParallelVectorEnv([make_env] * num_envs, num_workers=num_workers)) as envs:
        envs.reset(seed=0)
        for begin in itertools.cycle(range(0, len(actions), 20)):
            for row in actions[begin : begin + 20]:
                envs.step(row)
            yield 20 * num_envs


def half_steps(num_envs: int, num_workers: int) -> Iterator[int]:
    """Step two halves of a vector env in turn without end and yield the number of env steps after every 20 of each."""
    from parenv import ParallelVectorEnv

    envs = ParallelVectorEnv([make_env] * num_envs, num_workers=num_workers, batch_size=num_envs // 2)
    actions = np.random.default_rng(0).integers(2, size=(1000, num_envs // 2))
    with contextlib.closing(envs):
        envs.reset(seed=0)
        envs.send(np.zeros(num_envs, np.int64))
        for begin in itertools.cycle(range(0, len(actions), 40)):
            for row in actions[begin : begin + 40]:
                envs.send(row, envs.recv()[-1]["env_id"])
            yield 20 * num_envs


CASES: dict[str, tuple[Callable[..., Iterator[int]], tuple[Any, ...]]] = {
    "pool-8-numpy": (pool_steps, (8, 0, numpy_policy)),
    "pool-64-numpy": (pool_steps, (64, 0, numpy_policy)),
    "pool-8-torch": (pool_steps, (8, 0, TorchAgent)),
    "pool-64-torch": (pool_steps, (64, 0, TorchAgent)),
    "pool-2-workers": (pool_steps, (64, 2, numpy_policy)),
    "vector-8": (vector_steps, (8, 0)),
    "vector-64": (vector_steps, (64, 0)),
    "vector-2-workers": (vector_steps, (64, 2)),
    "vector-8-2-workers": (vector_steps, (8, 2)),
    "halves-2-workers": (half_steps, (64, 2)),
}
"""Cases by name: function, and its ``num_envs``, ``num_workers`` and policy."""


def serve(case: str) -> None:
    """Measure a slice for each line of the standard input, in the process of one checkout.

    Each answer is a line with env steps per second of wall time and of processor time.
    """
    torch.set_num_threads(1)
    make, arguments = CASES[case]
    counts = make(*arguments)
    next(counts)
    others = psutil.Process().children(recursive=True)
    for _ in sys.stdin:
        began, processor_began = time.perf_counter(), processor_s(others)
        env_steps = 0
        while time.perf_counter() < began + SLICE_S:
            env_steps += next(counts)
        took = time.perf_counter() - began, processor_s(others) - processor_began
        print(json.dumps([env_steps / seconds for seconds in took]), flush=True)


def processor_s(others: list[psutil.Process]) -> float:
    """Return processor seconds of this process and of others. psutil would round them to hundredths of a second."""
    files = [file for other in others for file in Path(f"/proc/{other.pid}/task").glob("*/schedstat")]
    return time.process_time() + sum(int(file.read_text().split()[0]) for file in files) / 1e9


Side = tuple[Path, dict[str, str]]
"""A checkout, and environment variables for it."""


def ratios(old: Side, new: Side, case: str, pairs: int) -> list[list[float]]:
    """Return the ratios of new to old rates of each pair of slices, for wall time and processor time.

    The checkout that is measured first alternates.
    """
    arguments = "--serve", case
    servers = [Server(path.resolve(), __file__, arguments, WARM_UP_SLICES, more) for path, more in (old, new)]
    found = []
    for pair in range(pairs):
        first = pair % 2
        rates = {which: servers[which].slice() for which in (first, 1 - first)}
        found.append([after / before for before, after in zip(rates[0], rates[1], strict=True)])
    for server in servers:
        server.close()
    return found


def report(case: str, found: list[list[float]]) -> None:
    """Print the median and the quartiles of the ratios of one case."""
    words = []
    for what, values in zip(("wall", "processor"), zip(*found, strict=True), strict=True):
        lower, median, upper = statistics.quantiles(values)
        words.append(f"{what} {median:.3f} ({lower:.3f} to {upper:.3f})")
    print(f"{case:17} {', '.join(words)}, {len(found)} pairs", flush=True)


def main() -> None:
    """Compare two checkouts in all cases that the command line names."""
    parser = argparse.ArgumentParser(description="Compare the speed of two checkouts in alternating slices.")
    parser.add_argument("old", type=Path, help="Folder of the old checkout.")
    parser.add_argument("--posix", action="store_true", help="Compare two layers for systems instead, see above.")
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", default=list(CASES), help="Cases to measure (default: all)."
    )
    parser.add_argument("--new", type=Path, default=HERE, help="Folder of the new checkout (default: this one).")
    parser.add_argument("--rounds", type=int, default=5, help="Restarts of both processes (default: 5).")
    parser.add_argument("--pairs", type=int, default=40, help="Pairs of slices per restart (default: 40).")
    given = parser.parse_intermixed_args()
    cores = os.sched_getaffinity(0)
    old, new = ({"PARENV_PLATFORM": name} if given.posix else {} for name in ("linux", "posix"))
    cases = [case for case in given.cases if "workers" in case] if given.posix else given.cases
    for case in cases:
        os.sched_setaffinity(0, cores if "workers" in case else {max(cores)})
        found = [ratios((given.old, old), (given.new, new), case, given.pairs) for _ in range(given.rounds)]
        report(case, [pair for pairs in found for pair in pairs])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main()
