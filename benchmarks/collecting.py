"""Processor time of the main process per rollout of a worker, for this checkout and others in turn.

A rollout has 32 steps in 2 CartPoles, with a policy that is one comparison of numpy. "busy": the workers take all
cores, so rollouts wait for the main process. "seldom": a step sleeps for a millisecond, so the main process waits for
rollouts and finds cold caches. "all threads" includes the thread with which ZeroMQ sends and receives.

Each checkout has its own process for each case, because two checkouts cannot be imported at once. All processes of a
case measure slices of the same number of rollouts in turn, so other load on the machine affects all alike.

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
    """Sleeps before each step."""

    def step(self, action: Any) -> Any:
        """Sleep and step."""
        time.sleep(SLEEP_S)
        return self.env.step(action)


def busy() -> Any:
    """Make a CartPole."""
    return gym.make("CartPole-v1")


def seldom() -> Any:
    """Make a CartPole that sleeps."""
    return Sleeping(gym.make("CartPole-v1"))


def lean(observations: Any) -> Any:
    """Push to the side to which the pole leans."""
    return observations[:, 2] > 0


def slices(case: str, workers: int, rollouts: int) -> Iterator[dict[str, float]]:
    """Yield the microseconds per rollout of a worker in one slice after the other."""
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
    """Return the median and the quartiles of each checkout, and the ratio of its slices to those of the first one."""
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
    """Measure a slice for each line of the standard input."""
    turns = slices(case, int(workers), int(rollouts))
    for _ in sys.stdin:
        print(json.dumps(next(turns)), flush=True)


def main() -> None:
    """Measure all cases. With one checkout only, write its results."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[HERE], metavar="CHECKOUT")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--slices", type=int, default=15)
    parser.add_argument("--rollouts", type=int, default=300)
    parser.add_argument("--cases", nargs="*", default=CASES)
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
