"""Question 7: how long does PPO take on CartPole until the last 100 episodes have a mean return of 475?

All implementations have the same settings and networks. The time starts when environments and processes are ready. The
start-up time is a separate value. A run fails if it has not reached the goal after 180 s or 200,000 env steps.

python benchmarks/peers/to_475.py
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

from asked import System, compared
from lib.common import save, spread

SEEDS, LIMIT_S = (1, 2, 3, 4, 5), 180.0
SETTINGS = {
    "num_envs": 16,
    "rollout_length": 32,
    "learning_rate": 1e-3,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "epochs": 10,
    "minibatch_size": 256,
    "clip_range": 0.2,
    "entropy_coef": 0.0,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
    "total_env_steps": 200_000,
    "stop_return": 475.0,
}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain, one process": ("parenv", "our_examples", {"example": "ppo_plain", "num_workers": 0}),
    "parenv, 2 workers": ("parenv", "our_examples", {"example": "ppo", "num_workers": 2}),
    "SB3, DummyVecEnv": ("plain", "sb3_learning", {"kind": "DummyVecEnv"}),
    "SB3, SubprocVecEnv": ("plain", "sb3_learning", {"kind": "SubprocVecEnv"}),
    "RLlib, 2 runners": ("rllib", "rllib", {"num_runners": 2}),
}


def system(name: str, seed: int) -> System:
    """Return the run of an implementation with one seed."""
    environment, module, arguments = KINDS[name]
    every = {**arguments, "seed": seed, "settings": SETTINGS}
    return System(f"{name}, seed {seed}", environment, module, "to_475", every, reopened=True)


def of_all_seeds(runs: Sequence[Any]) -> dict[str, Any]:
    """Return a summary of all runs of one implementation. Its medians are ``None`` if most runs failed."""
    failed = [run for run in runs if isinstance(run, str)]
    if failed:
        return {"failed": failed[0]}
    ends = [run[0] for run in runs]
    medians = {
        f"median_{key}": statistics.median(end[key] if end["reached"] else math.inf for end in ends)
        for key in ("seconds", "env_steps")
    }
    return {
        "runs_that_reached_it": sum(end["reached"] for end in ends),
        **{key: None if math.isinf(value) else value for key, value in medians.items()},
        "seconds": spread([end["seconds"] for end in ends]),
    }


def main() -> None:
    """Run all implementations with each seed in turn, and save the results."""
    found = compared([system(name, seed) for seed in SEEDS for name in KINDS], 1, LIMIT_S)
    results = {name: of_all_seeds([found[f"{name}, seed {seed}"] for seed in SEEDS]) for name in KINDS}
    save("peers_to_475", {"settings": SETTINGS, "runs": results})


if __name__ == "__main__":
    main()
