"""Runs what a new user runs first, with an installed wheel: python tests/smoke.py."""

from __future__ import annotations

import numpy as np
import torch

import parenv
from parenv.platform import system


class Greedy(torch.nn.Linear):
    """Acts by the larger output."""

    def act(self, observations: torch.Tensor) -> torch.Tensor:
        """Return an action for each observation."""
        return self(observations).argmax(-1)  # type: ignore[no-any-return]


def main() -> None:
    """Step and collect in this process, and with two workers where the system has worker processes."""
    for num_workers in (0, 2) if system.HAS_PROCESSES else (0,):
        with parenv.ParallelVectorEnv(["CartPole-v1"] * 4, num_workers=num_workers) as envs:
            first, _ = envs.reset(seed=0)
            for _ in range(100):
                observations, *_ = envs.step(np.ones(4, np.int64))
        assert first.shape == observations.shape == (4, 4), observations.shape
        assert np.isfinite(observations).all()
        policy = parenv.TorchPolicy(Greedy(4, 2), "act", outputs=("actions",))
        with parenv.AsyncWorkerPool("CartPole-v1", policy, num_workers=num_workers, mode="sync", seed=0) as pool:
            steps = sum(rollout.rewards.size for rollout in pool.rollouts(parenv.Stop(env_steps=2000)))
        assert steps >= 2000, steps
        print(f"parenv {parenv.__version__} on {system.NAME}: num_workers={num_workers} works")


if __name__ == "__main__":
    main()
