"""PPO of Stable-Baselines3 on CartPole-v1, its environments stepped by parenv's workers.

`vec_env_cls=ParallelVecEnv` is all that changes. The settings are those of RL Baselines3 Zoo. Training ends when the
mean return of the last 100 episodes reaches `--stop-return`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from parenv.adapters.sb3 import ParallelVecEnv


class StopAtMeanReturn(BaseCallback):
    def __init__(self, target: float) -> None:
        super().__init__()
        self.target, self.mean_return, self.began = target, 0.0, time.perf_counter()

    def _on_step(self) -> bool:
        episodes = self.model.ep_info_buffer
        self.mean_return = float(np.mean([episode["r"] for episode in episodes])) if episodes else 0.0
        return len(episodes) < 100 or self.mean_return < self.target

    def _on_rollout_end(self) -> None:
        if self.num_timesteps % 2048 == 0:
            self.print()

    def _on_training_end(self) -> None:
        self.print()

    def print(self) -> None:
        seconds = time.perf_counter() - self.began
        print(f"{self.num_timesteps:8d} steps  {seconds:6.1f} s  {self.mean_return:6.1f} mean return", flush=True)


def main(argv: Sequence[str] | None = None) -> tuple[int, float]:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--env-steps", type=int, default=100_000, help="give up after so many steps")
    parser.add_argument("--stop-return", type=float, default=475.0, help="mean return that ends the training")
    parser.add_argument("--num-workers", type=int, default=2, help="worker processes")
    parser.add_argument("--seed", type=int, default=1, help=" ")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)

    envs = make_vec_env(
        "CartPole-v1", 8, seed=args.seed, vec_env_cls=ParallelVecEnv, vec_env_kwargs={"num_workers": args.num_workers}
    )
    settings = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8}
    model = PPO(
        "MlpPolicy",
        envs,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        ent_coef=0.0,
        seed=args.seed,
        device="cpu",
        **settings,
    )
    callback = StopAtMeanReturn(args.stop_return)
    model.learn(args.env_steps, callback)
    envs.close()
    return model.num_timesteps, callback.mean_return


if __name__ == "__main__":
    main()
