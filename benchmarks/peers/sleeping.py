"""Question 3: how fast are 64 environments whose steps sleep 2 ms on average?

Rates are a share of the upper bound: 64 independent processes with one environment each.

python benchmarks/peers/sleeping.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

from asked import System, compared, summary
from lib.common import keep

NUM_ENVS, BATCH_SIZE, ROLLOUT_LENGTH, CORES = 64, 8, 128, 2
SECONDS, REPEATS, WARM_UP_S = 2.0, 3, 0.5


def systems() -> list[System]:
    """Return the systems and the upper bound. PufferLib gets one worker per core, because its workers busy-wait."""
    sizes = {"case": "sleeping", "num_envs": NUM_ENVS}
    ready, alone = {**sizes, "batch_size": BATCH_SIZE}, {"case": "sleeping", "num_workers": NUM_ENVS}
    part, whole = f"the {BATCH_SIZE} that are ready", f"all {NUM_ENVS}"
    return [
        System("limit", "parenv", "loops", "limit", {**sizes, "num_processes": NUM_ENVS}),
        System(f"parenv, {part}", "parenv", "ours", "ready", {**ready, "num_workers": NUM_ENVS}),
        System(
            f"parenv AsyncWorkerPool, rollouts of {ROLLOUT_LENGTH} steps",
            "parenv",
            "ours",
            "without_a_policy",
            {**alone, "rollout_length": ROLLOUT_LENGTH},
        ),
        System(f"parenv, {whole}", "parenv", "ours", "stepping", {**sizes, "num_workers": NUM_ENVS}),
        System(f"Tianshou SubprocVectorEnv, {part}", "plain", "tianshou_envs", "ready", ready),
        System(f"TorchRL AsyncEnvPool, threads, {part}", "plain", "torchrl_envs", "ready", ready),
        System(
            f"PufferLib Multiprocessing, a worker per core, {whole}",
            "pufferlib",
            "pufferlib_envs",
            "stepping",
            {**sizes, "num_workers": CORES},
        ),
        *(
            System(f"{name}, {whole}", "plain", module, "stepping", {**sizes, "kind": kind})
            for name, module, kind in (
                ("Gymnasium AsyncVectorEnv", "gymnasium_envs", "AsyncVectorEnv"),
                ("SB3 SubprocVecEnv", "sb3_envs", "SubprocVecEnv"),
                ("Tianshou SubprocVectorEnv", "tianshou_envs", "SubprocVectorEnv"),
                ("TorchRL ParallelEnv", "torchrl_envs", "ParallelEnv"),
            )
        ),
    ]


if __name__ == "__main__":
    found = summary(compared(systems(), REPEATS, SECONDS, WARM_UP_S), "limit")
    keep("peers_sleeping", f"{NUM_ENVS} environments that sleep", found)
