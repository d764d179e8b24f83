"""Processor time of the main process per rollout of a worker, for this checkout or for several in turn.

A rollout has 32 steps in 2 CartPoles, with a policy that is one comparison in NumPy. In the cases "busy", the workers
use all cores, so rollouts wait for the main process. In the cases "seldom", a step sleeps for a millisecond, so the
main process waits for rollouts and its caches are cold. The clock "all threads" includes the I/O thread of ZeroMQ.

Each checkout has its own process for each case, because two checkouts cannot be imported at once. All processes of a
case measure slices of the same number of rollouts in turn, so other load on the machine affects all equally.

python benchmarks/collecting.py [CHECKOUT ...] [--workers 15] [--slices 15] [--rollouts 300]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from lib.checkouts import Server
from lib.common import save

HERE = Path(__file__).resolve().parents[1]
CASES = [f"{mode}, {load}" for mode in ("sync", "async") for load in ("busy", "seldom")]
SLEEP_S = 0.001


class Sleeping(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that sleeps for 1 ms before each step."""

    def step(self, action: Any) -> Any:
        """Sleep and step."""
        time.sleep(SLEEP_S)
        return self.env.step(action)


def busy() -> Any:
    """Make a CartPole."""
    return gym.make("CartPole-v1")


def seldom() -> Any:
    """Make a CartPole that sleeps before each step."""
    return Sleeping(gym.make("CartPole-v1"))


def lean(observations: Any) -> Any:
    """Push each cart towards the side to which its pole leans."""
    return observations[:, 2] > 0


def slices(case: str, workers: int, rollouts: int) -> Iterator[dict[str, float]]:
    """Measure slices without end and yield the microseconds per rollout of a worker, by name of the clock.

    Args:
        case: Name of a case, such as ``"sync, busy"``.
        workers: Number of workers.
        rollouts: Number of rollouts in a slice.
    """
    from parenv import AsyncWorkerPool

    mode, load = case.split(", ")
    make, per_round = {"busy": busy, "seldom": seldom}[load], workers if mode == "sync" else 1
    given: Any = {"num_envs": 2 * workers, "num_workers": workers, "rollout_length": 32, "mode": mode, "seed": 0}
    with AsyncWorkerPool(make, lean, **given) as pool:
        stream = pool.rollouts()
        while True:
            before = time.process_time(), time.thread_time()
            for _ in range(rollouts // per_round):
                next(stream)
            after = time.process_time(), time.thread_time()
            count = rollouts // per_round * per_round
            yield {
                name: (end - begin) / count * 1e6
                for name, begin, end in zip(("all threads", "main thread"), before, after, strict=True)
            }


def measured(checkouts: Sequence[Path], case: str, given: argparse.Namespace) -> dict[str, Any]:
    """Measure a case and return medians, quartiles and the ratio to the first checkout, by name of the checkout.

    The ratio is the median over pairs of slices of the same turn.
    """
    arguments = "--serve", case, str(given.workers), str(given.rollouts)
    servers = [Server(checkout, __file__, arguments, warm_up=1) for checkout in checkouts]
    found = [[server.slice() for server in servers] for _ in range(given.slices)]
    for server in servers:
        server.close()
    results: dict[str, Any] = {}
    for place, checkout in enumerate(checkouts):
        name = "this checkout" if checkout == HERE else checkout.name
        for clock in ("all threads", "main thread"):
            values = [turn[place][clock] for turn in found]
            ratios = [turn[place][clock] / turn[0][clock] for turn in found]
            low, median, high = statistics.quantiles(values)
            about = {"median": median, "quartiles": [low, high], "ratio to the first": statistics.median(ratios)}
            results.setdefault(name, {})[f"us per rollout of a worker, {clock}"] = about
            print(f"{case:15} {name:20} {clock}: {median:.0f} us, {about['ratio to the first']:.2f}", flush=True)
    return results


def serve(case: str, workers: str, rollouts: str) -> None:
    """Measure a slice for each line of the standard input, and print its results as a line of JSON."""
    turns = slices(case, int(workers), int(rollouts))
    for _ in sys.stdin:
        print(json.dumps(next(turns)), flush=True)


def main() -> None:
    """Measure all cases. Write the results if this checkout is the only one."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "checkouts",
        nargs="*",
        type=Path,
        default=[HERE],
        metavar="CHECKOUT",
        help="Folders of checkouts (default: this one).",
    )
    parser.add_argument("--workers", type=int, default=15, help="Number of workers (default: 15).")
    parser.add_argument("--slices", type=int, default=15, help="Slices per checkout and case (default: 15).")
    parser.add_argument("--rollouts", type=int, default=300, help="Rollouts of workers in a slice (default: 300).")
    parser.add_argument("--cases", nargs="*", default=CASES, help="Cases to measure (default: all).")
    given = parser.parse_args()
    checkouts = [checkout.resolve() for checkout in given.checkouts]
    results = {case: measured(checkouts, case, given) for case in given.cases}
    if checkouts == [HERE]:
        save("collecting", {case: found["this checkout"] for case, found in results.items()})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
