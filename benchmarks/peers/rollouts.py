"""Question 2: what share of the upper bound do rollouts with a policy reach?

Rates are env steps per second that arrive in the learner's process as batches ``[T, B]``. The upper bound is two
independent processes that act and step.

python benchmarks/peers/rollouts.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

from asked import System, compared, summary
from lib.common import save

NUM_ENVS, NUM_WORKERS, ROLLOUT_LENGTH = 64, 2, 128
SECONDS, REPEATS = 3.0, 3


def systems() -> list[System]:
    """Return the systems that collect rollouts, and the upper bound."""
    alone = {"num_envs": NUM_ENVS, "rollout_length": ROLLOUT_LENGTH}
    several = {**alone, "num_workers": NUM_WORKERS}
    return [
        System("limit", "parenv", "delivery", "limit", {**alone, "num_processes": NUM_WORKERS}),
        *(
            System(f"parenv, {mode}", "parenv", "our_pool", "rollouts", {**several, "mode": mode})
            for mode in ("async", "sync")
        ),
        *(
            System(f"CleanRL's loop, {kind}", "plain", "delivery", "plain_loop", {**alone, "kind": kind})
            for kind in ("SyncVectorEnv", "AsyncVectorEnv")
        ),
        *(
            System(f"SB3 PPO, {kind}", "plain", "sb3_learning", "rollouts", {**alone, "kind": kind})
            for kind in ("DummyVecEnv", "SubprocVecEnv")
        ),
        *(
            System(f"Tianshou Collector, {kind}", "plain", "tianshou_collector", "rollouts", {**alone, "kind": kind})
            for kind in ("DummyVectorEnv", "ShmemVectorEnv")
        ),
        *(
            System(f"TorchRL {kind}", "plain", "torchrl_collectors", "rollouts", {**several, "kind": kind})
            for kind in ("Collector", "MultiSyncCollector", "MultiAsyncCollector")
        ),
        System("RLlib env runners", "rllib", "rllib", "rollouts", several),
        System("Sample Factory", "sample_factory", "sample_factory_sampling", "rollouts", several),
        System("ElegantRL", "elegantrl", "", ""),  # Its dependencies cannot be installed.
    ]


if __name__ == "__main__":
    save("peers_rollouts", summary(compared(systems(), REPEATS, SECONDS), "limit"))
