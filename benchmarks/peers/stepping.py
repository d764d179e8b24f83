"""Question 1: stepping vector envs with random actions, as a share of two bare loops that tell nobody.

python benchmarks/peers/stepping.py                  all cases
python benchmarks/peers/stepping.py cartpole-64 ...  some of them
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

from asked import System, compared, summary
from common import keep

PROCESSES = 2
SECONDS, REPEATS = 1.0, 5
CASES = {
    f"{case}-{n}": (case, n)
    for case, n in (
        ("cartpole", 8),
        ("cartpole", 64),
        ("cartpole", 256),
        ("lunarlander", 16),
        ("halfcheetah", 16),
        ("pong", 8),
    )
}


def systems(case: str, num_envs: int) -> list[System]:
    """Everybody who steps sub-environments, and the limit."""
    sizes = {"case": case, "num_envs": num_envs}
    kinds = {
        "Gymnasium SyncVectorEnv": ("plain", "gymnasium_envs", "SyncVectorEnv"),
        "Gymnasium AsyncVectorEnv": ("plain", "gymnasium_envs", "AsyncVectorEnv"),
    }
    return [
        System("limit", "parenv", "loops", "limit", {**sizes, "num_processes": PROCESSES}),
        System("parenv, step", "parenv", "ours", "stepping", {**sizes, "num_workers": PROCESSES}),
        System(
            "parenv, send/recv",
            "parenv",
            "ours",
            "ready",
            {**sizes, "num_workers": PROCESSES, "batch_size": num_envs // 2},
        ),
        *(
            System(name, environment, module, "stepping", {**sizes, "kind": kind})
            for name, (environment, module, kind) in kinds.items()
        ),
    ]


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        print(name, flush=True)
        keep("peers_stepping", name, summary(compared(systems(*CASES[name]), REPEATS, SECONDS), "limit"))
