"""Scaling of steps and rollouts with the number of workers: 120 environments on 1, 2, 4, 8 and 15 workers.

All systems run on one core per worker and one more for the main process. The upper bound is one independent process
per worker on the same cores.

python benchmarks/peers/cores.py                        all questions, with as many workers as the cores allow
python benchmarks/peers/cores.py rollouts ...           some of: cartpole, halfcheetah, rollouts
python benchmarks/peers/cores.py --ours ...             only parenv and the upper bound
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

from asked import System, compared, summary
from lib.common import keep

NUM_ENVS, ROLLOUT_LENGTH = 120, 128
WORKERS = (1, 2, 4, 8, 15)
STEPPING_S, ROLLOUTS_S, WARM_UP_S, REPEATS = 0.3, 1.0, 0.2, 5
PEERS_STEPPING = (
    ("Gymnasium AsyncVectorEnv", "gymnasium_envs", {"kind": "AsyncVectorEnv"}),
    ("SB3 SubprocVecEnv", "sb3_envs", {"kind": "SubprocVecEnv"}),
)
QUESTIONS = ("cartpole", "halfcheetah", "rollouts")


def stepping(case: str, workers: int, with_peers: bool) -> list[System]:
    """Return the vector envs to step, and the upper bound."""
    sizes = {"case": case, "num_envs": NUM_ENVS}
    ours = {**sizes, "num_workers": workers}
    caller = {**ours, "caller_steps": True}
    peers = PEERS_STEPPING if with_peers else ()
    return [
        System("limit", "parenv", "loops", "limit", {**sizes, "num_processes": workers}),
        System("parenv, caller and workers step", "parenv", "ours", "stepping", caller),
        System("parenv, the same, spin_us=1000", "parenv", "ours", "stepping", {**caller, "spin_us": 1000}),
        System("parenv, step", "parenv", "ours", "stepping", ours),
        System("parenv, step, nobody spins", "parenv", "ours", "stepping", {**ours, "spin_us": 0}),
        System("parenv, send/recv of halves", "parenv", "ours", "ready", {**ours, "batch_size": NUM_ENVS // 2}),
        *(System(name, "plain", module, "stepping", {**sizes, **kind}) for name, module, kind in peers),
    ]


def rollouts(workers: int, with_peers: bool) -> list[System]:
    """Return the systems that collect rollouts, and the upper bound."""
    alone = {"num_envs": NUM_ENVS, "rollout_length": ROLLOUT_LENGTH}
    ours = {**alone, "num_workers": workers}
    peers = [
        System(
            "CleanRL's loop, AsyncVectorEnv", "plain", "delivery", "plain_loop", {**alone, "kind": "AsyncVectorEnv"}
        ),
        System("SB3 PPO, SubprocVecEnv", "plain", "sb3_learning", "rollouts", {**alone, "kind": "SubprocVecEnv"}),
    ]
    return [
        System("limit", "parenv", "delivery", "limit", {**alone, "num_processes": workers}),
        *(
            System(f"parenv, {mode}", "parenv", "our_pool", "rollouts", {**ours, "mode": mode})
            for mode in ("async", "sync")
        ),
        *(peers if with_peers else ()),
    ]


def measure(question: str, workers: int, with_peers: bool) -> None:
    """Measure one question with this number of workers, and store the results."""
    print(question, workers, flush=True)
    asked = rollouts(workers, with_peers) if question == "rollouts" else stepping(question, workers, with_peers)
    seconds = ROLLOUTS_S if question == "rollouts" else STEPPING_S
    keep("peers_cores", f"{question}-{workers}", summary(compared(asked, REPEATS, seconds, WARM_UP_S), "limit"))


def main() -> None:
    """Measure the questions with each number of workers that leaves a core for the main process."""
    asked = [name for name in sys.argv[1:] if not name.startswith("-")] or QUESTIONS
    cores = sorted(os.sched_getaffinity(0))
    for workers in (count for count in WORKERS if count < len(cores)):
        os.sched_setaffinity(0, cores[: workers + 1])
        for question in asked:
            measure(question, workers, "--ours" not in sys.argv)
    os.sched_setaffinity(0, cores)


if __name__ == "__main__":
    main()
