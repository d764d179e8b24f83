"""Step a ParallelVectorEnv with double buffering: the policy acts on one half while the workers step the other half.

Nothing is learned. A random network acts on CartPole-v1.

    python examples/half_batches.py --total-env-steps 200000

prints the number of env steps and the env steps per second.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from parenv import ParallelVectorEnv

policy = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))


def act(observations: Any) -> Any:
    """Sample an action for each observation."""
    with torch.inference_mode():
        return torch.distributions.Categorical(logits=policy(torch.from_numpy(observations))).sample().numpy()


def main(argv: list[str] | None = None) -> tuple[int, Any]:
    """Return the number of env steps, in total and of each environment."""
    about = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=64, help="Number of environments")
    parser.add_argument(
        "--num-workers", type=int, default=2, help="Number of worker processes; 0: run everything in the main process"
    )
    parser.add_argument("--total-env-steps", type=int, default=200_000, help="Minimum number of env steps")
    args = parser.parse_args(argv)
    half = args.num_envs // 2
    envs = ParallelVectorEnv(
        [lambda: gym.make("CartPole-v1")] * args.num_envs, num_workers=args.num_workers, batch_size=half
    )
    observations, _ = envs.reset(seed=1)
    # Start both halves: even env_ids, then odd env_ids, so that each worker has environments of both halves.
    for ids in np.arange(args.num_envs).reshape(half, 2).T:
        envs.send(act(observations[ids]), ids)
    counts, began = np.zeros(args.num_envs, np.int64), time.perf_counter()
    while counts.sum() < args.total_env_steps:
        observations, _, _, _, infos = envs.recv()  # the first num_envs / 2 that are ready
        counts[infos["env_id"]] += 1  # env_id of each row
        envs.send(act(observations), infos["env_id"])
    print(f"{counts.sum():,} env steps, {counts.sum() / (time.perf_counter() - began):,.0f} per second")
    envs.close()
    return int(counts.sum()), counts


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
