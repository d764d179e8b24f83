"""64 CartPole agents that evolve, compared with 64 that do not, at equal env steps; and the overhead of evolution.

python benchmarks/evolving.py [SEED ...]

Both are the population of examples/population.py, but the second one never copies a member. Each population selects its
best member by fitness. At the end, 100 new episodes measure the return of this member.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lib.common import RESULTS, keep

from parenv import AsyncWorkerPool, Stop
from parenv.placement import local
from parenv.population import Fitness, Tournament
from parenv.protocol import frames

SEEDS = (1, 2, 3, 4, 5)
SIZE, EVERY, ROUNDS, WORKERS, EPISODES = 64, 2_048, 8, 2, 5
SOLVED = 475.0


@dataclass(frozen=True)
class Never(Tournament):
    """Exploitation rule that never copies a member."""

    def parents(self, due: Sequence[int], scores: Any, generator: Any) -> dict[int, int]:
        """Return no copies."""
        return {}


class Traffic:
    """Context manager that counts the bytes of all messages to and from local workers.

    Attributes:
        nbytes: Number of bytes so far.
    """

    def __init__(self) -> None:
        self.nbytes = 0

    def __enter__(self) -> Traffic:
        local.to_frames, local.from_frames = self._sent, self._received  # type: ignore[assignment]
        return self

    def __exit__(self, *raised: object) -> None:
        local.to_frames, local.from_frames = frames.to_frames, frames.from_frames

    def _count(self, parts: Any) -> Any:
        self.nbytes += sum(memoryview(part).nbytes for part in parts)
        return parts

    def _sent(self, *message: Any) -> Any:
        return self._count(frames.to_frames(*message))

    def _received(self, parts: Any) -> Any:
        return frames.from_frames(self._count(parts))


def run(evolve: Tournament, seed: int) -> dict[str, float]:
    """Train one population for a fixed number of env steps and return its results.

    Args:
        evolve: Exploitation rule.
        seed: Seed of the population.
    """
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    import population

    args = population.Args(size=SIZE, every=EVERY, num_workers=WORKERS, num_envs=16, rollout_length=16, seed=seed)
    solved, began, total = float("inf"), 0.0, SIZE * EVERY * ROUNDS
    more = {"evolve": evolve, "lineage": None, "fitness": Fitness(episodes=EPISODES)}
    with Traffic() as traffic, population.make_population(args, **more) as members:
        began = time.perf_counter()
        for report in members.reports(Stop(env_steps=total)):
            if report.score >= SOLVED:
                solved = min(solved, members.statistics().env_steps)
        seconds, figures = time.perf_counter() - began, members.statistics()
        best = members.member(members.best)
    working = figures.switching_seconds + figures.learning_seconds + figures.fitness_seconds
    with AsyncWorkerPool(args.env_id, best.policy, num_envs=20, num_workers=WORKERS, seed=1000 + seed) as pool:
        final_return = pool.evaluate(100).mean_return
    weights = sum(tensor.nbytes for tensor in best.policy.module.parameters())
    updates = figures.env_steps / (args.num_envs * args.rollout_length)
    hours = SIZE * seconds / 3600
    return {
        "return of the best, measured anew": final_return,
        f"env steps until a member scored {SOLVED:g}": solved,
        "seconds": seconds,
        "copies": figures.copies,
        "evolving, % of the driver's time": 100 * figures.evolving_seconds / seconds,
        "switching members, % of the workers' time": 100 * figures.switching_seconds / working,
        "switching a member, ms": 1000 * figures.switching_seconds / figures.turns,
        "bytes of messages per member and hour": traffic.nbytes / hours,
        "bytes per member and hour if a learner had them act and learned itself": (
            (updates * weights + figures.env_steps * bytes_per_env_step()) / hours
        ),
        "state of a member, bytes": figures.member_bytes,
    }


def bytes_per_env_step() -> int:
    """Return the size of CartPole's rollout fields: observation, action, reward and two flags."""
    return 4 * 4 + 8 + 4 + 2


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = defaultdict(list)
    for seed in map(int, sys.argv[1:] or SEEDS):
        for name, evolve in (("evolving", Tournament(3, EVERY)), ("independent", Never(3, EVERY))):
            one = run(evolve, seed)
            print(f"seed {seed}, {name}: {one}", flush=True)
            found[name].append(one)
            medians = {key: statistics.median(row[key] for row in found[name]) for key in one}
            keep("evolving", name, {"medians": medians, "seeds": found[name]})
    print(RESULTS / "evolving.json")
