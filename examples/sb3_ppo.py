"""Train PPO of Stable-Baselines3 on CartPole-v1 in environments that parallel workers step.

`vec_env_cls=ParallelVecEnv` is the only change of a program for Stable-Baselines3. The hyperparameters come from
RL Baselines3 Zoo. Training stops when the mean return of the last 100 episodes reaches `--stop-return`.

    pip install ".[sb3]"
    python examples/sb3_ppo.py --num-workers 2

prints the env steps, the seconds and the mean return of the last 100 episodes, every 2,048 env steps and at the end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from script import CommonArgs, Curve, draw, flag, parse

try:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    from parenv.adapters.sb3 import ParallelVecEnv
except ImportError:
    raise SystemExit('sb3_ppo.py needs Stable-Baselines3: pip install ".[sb3]"') from None


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(100_000, "Maximum number of env steps")
    stop_return: float = flag(475.0, "Mean return of the last 100 episodes at which training stops")
    num_envs: int = flag(8, "Number of environments")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")


class StopAtMeanReturn(BaseCallback):
    """Callback that records the learning curve and stops the training at a mean return of the last 100 episodes."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self.target, self.mean_return, self.curve = target, 0.0, Curve()

    def _on_step(self) -> bool:
        episodes = self.model.ep_info_buffer
        self.mean_return = float(np.mean([episode["r"] for episode in episodes])) if episodes else 0.0
        return len(episodes) < 100 or self.mean_return < self.target

    def _on_rollout_end(self) -> None:
        self._add_point()
        if self.num_timesteps % 2048 == 0:
            self.curve.print_last()

    def _on_training_end(self) -> None:
        self._add_point()
        self.curve.print_last()

    def _add_point(self) -> None:
        seconds = time.perf_counter() - self.curve.started
        self.curve.points.append((self.num_timesteps, seconds, self.mean_return))


def main(argv: Sequence[str] | None = None) -> tuple[int, float]:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)

    workers = {"num_workers": args.num_workers}
    # The only change: without vec_env_cls, Stable-Baselines3 uses DummyVecEnv.
    envs = make_vec_env(args.env_id, args.num_envs, args.seed, vec_env_cls=ParallelVecEnv, vec_env_kwargs=workers)
    settings = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8}
    model = PPO(
        "MlpPolicy",
        envs,
        learning_rate=lambda remaining: 1e-3 * remaining,
        clip_range=lambda remaining: 0.2 * remaining,
        ent_coef=0.0,
        seed=args.seed,
        device="cpu",
        **settings,
    )
    callback = StopAtMeanReturn(args.stop_return)
    model.learn(args.total_env_steps, callback)
    envs.close()
    if args.save:
        model.save(args.save)
    if args.plot:
        draw(args.plot, args.env_id, callback.curve)
    return model.num_timesteps, callback.mean_return


if __name__ == "__main__":
    main()
