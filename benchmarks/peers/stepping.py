"""Question 1: what share of the upper bound do vector envs reach that step with random actions?

The upper bound is two independent processes that only step.

python benchmarks/peers/stepping.py                  all cases
python benchmarks/peers/stepping.py cartpole-64 ...  some of them
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

from asked import System, compared, summary
from lib.common import keep

PROCESSES = 2
SECONDS, REPEATS, WARM_UP_S = 0.5, 5, 0.3
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
OTHER_LIBRARIES = (
    ("Gymnasium SyncVectorEnv", "plain", "gymnasium_envs", {"kind": "SyncVectorEnv"}),
    ("Gymnasium AsyncVectorEnv", "plain", "gymnasium_envs", {"kind": "AsyncVectorEnv"}),
    ("SB3 DummyVecEnv", "plain", "sb3_envs", {"kind": "DummyVecEnv"}),
    ("SB3 SubprocVecEnv", "plain", "sb3_envs", {"kind": "SubprocVecEnv"}),
    ("Tianshou DummyVectorEnv", "plain", "tianshou_envs", {"kind": "DummyVectorEnv"}),
    ("Tianshou SubprocVectorEnv", "plain", "tianshou_envs", {"kind": "SubprocVectorEnv"}),
    ("Tianshou ShmemVectorEnv", "plain", "tianshou_envs", {"kind": "ShmemVectorEnv"}),
    ("TorchRL SerialEnv", "plain", "torchrl_envs", {"kind": "SerialEnv"}),
    ("TorchRL ParallelEnv", "plain", "torchrl_envs", {"kind": "ParallelEnv"}),
    ("PufferLib Serial", "pufferlib", "pufferlib_envs", {"num_workers": 0}),
    ("PufferLib Multiprocessing", "pufferlib", "pufferlib_envs", {"num_workers": PROCESSES}),
    ("EnvPool, own C++ envs, step", "plain", "envpool_envs", {"num_threads": PROCESSES}),
)


def systems(case: str, num_envs: int) -> list[System]:
    """Return the vector envs to step, and the upper bound."""
    sizes = {"case": case, "num_envs": num_envs}
    ours, halves = {**sizes, "num_workers": PROCESSES}, {**sizes, "batch_size": num_envs // 2}
    caller = {**sizes, "num_workers": PROCESSES - 1}
    return [
        System("limit", "parenv", "loops", "limit", {**sizes, "num_processes": PROCESSES}),
        System("parenv, step", "parenv", "ours", "stepping", ours),
        System("parenv, send/recv of halves", "parenv", "ours", "ready", {**ours, **halves}),
        System("parenv, caller and one worker", "parenv", "ours", "stepping", {**caller, "caller_steps": True}),
        System("parenv, in process", "parenv", "ours", "stepping", {**sizes, "num_workers": 0}),
        *(System(name, where, module, "stepping", {**sizes, **kind}) for name, where, module, kind in OTHER_LIBRARIES),
        System(
            "EnvPool, own C++ envs, send/recv",
            "plain",
            "envpool_envs",
            "ready",
            {**halves, "num_threads": PROCESSES},
        ),
    ]


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        print(name, flush=True)
        keep("peers_stepping", name, summary(compared(systems(*CASES[name]), REPEATS, SECONDS, WARM_UP_S), "limit"))
