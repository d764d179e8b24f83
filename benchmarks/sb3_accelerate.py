"""Gain of Stable-Baselines3 from ``accelerate``: collection rate, time of PPO to a return of 475, and returns.

python benchmarks/sb3_accelerate.py                 collecting, and PPO on CartPole-v1 to a mean return of 475
python benchmarks/sb3_accelerate.py curves [NAME]   returns at the end of training: all, or "CartPole, PPO" ...
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from lib.common import interleaved, keep, spread, summary
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

import parenv

WORKERS, REPEATS, STEPS, SEEDS_TO_475, SEEDS = 2, 7, 128, 5, 10
CASES = {"16 HalfCheetah": ("HalfCheetah-v5", 16), "64 CartPole": ("CartPole-v1", 64)}
ZOO: dict[str, Any] = {
    "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8, "ent_coef": 0.0,
    "learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.2 * left,
}  # fmt: skip
"""PPO settings of RL Baselines3 Zoo for CartPole-v1."""
MANY: dict[str, Any] = ZOO | {
    "n_steps": 128, "batch_size": 1024, "n_epochs": 4, "learning_rate": 2e-3, "clip_range": 0.2,
}  # fmt: skip
"""PPO settings for many environments, with which collecting takes most of the time."""
TO_475 = {"8 environments, as in the zoo": (8, ZOO), "64 environments": (64, MANY)}
CURVES: dict[str, tuple[Any, str, int, int, dict[str, Any]]] = {
    "CartPole, PPO": (PPO, "CartPole-v1", 8, 60_000, ZOO),
    "Pendulum, SAC": (SAC, "Pendulum-v1", 1, 8_000, {"learning_rate": 1e-3}),
    "LunarLander, DQN": (
        DQN, "LunarLander-v3", 4, 100_000,
        {"learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 1000, "gamma": 0.99,
         "target_update_interval": 250, "train_freq": 4, "gradient_steps": 4, "exploration_fraction": 0.12,
         "exploration_final_eps": 0.1, "policy_kwargs": {"net_arch": [256, 256]}},
    ),
}  # fmt: skip


class Collecting(PPO):
    """PPO that collects rollouts and does not learn."""

    def train(self) -> None:
        """Do nothing."""


class Curve(BaseCallback):
    """Callback that records the mean return of the last 100 episodes, and the time at which it reaches 475.

    Args:
        every: Env steps per point of the curve, or :data:`STOPS` to end the run at 475.

    Attributes:
        points: Pairs of env steps and mean return.
        solved_s: Seconds until the mean return was 475, NaN before.
    """

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.points, self.solved_s = every, list[tuple[int, float]](), float("nan")

    def _on_training_start(self) -> None:
        self.began = time.perf_counter()

    def _on_step(self) -> bool:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        if self.num_timesteps // self.every > len(self.points) and returns:
            self.points.append((self.num_timesteps, round(float(np.mean(returns)), 2)))
        solved = len(returns) == 100 and np.mean(returns) >= 475 and self.every == STOPS
        if solved:
            self.solved_s = time.perf_counter() - self.began
        return not solved


STOPS = 1_000_000_000
"""Value of ``every`` with which a curve has no points and the run ends at a mean return of 475."""


@contextlib.contextmanager
def learner(kind: type[Any], env_id: str, n_envs: int, how: str, seed: int, **settings: Any) -> Iterator[Any]:
    """Yield a model, and close its environments at the end.

    Args:
        kind: Class of the algorithm.
        env_id: Gymnasium id of the environment.
        n_envs: Number of sub-environments.
        how: ``"DummyVecEnv"``, ``"SubprocVecEnv"``, ``"accelerate"`` or ``"accelerate async"``.
        seed: Seed of the model.
        **settings: Further arguments of the algorithm.
    """
    vec_env_cls = SubprocVecEnv if how == "SubprocVecEnv" else DummyVecEnv
    # Given an id, make_vec_env enables rendering, and LunarLander then also simulates the particles of its flames.
    envs = make_vec_env(partial(gym.make, env_id), n_envs, seed, vec_env_cls=vec_env_cls)
    model = kind("MlpPolicy", envs, seed=seed, device="cpu", **settings)
    mode = how.partition(" ")[2] or "sync"
    try:
        if how.startswith("accelerate"):
            with parenv.adapters.sb3.accelerate(model, num_workers=WORKERS, mode=mode):
                yield model
        else:
            yield model
    finally:
        envs.close()


def collecting(env_id: str, n_envs: int, how: str) -> float:
    """Return the env steps per second of collecting, after the first rollout."""
    with learner(Collecting, env_id, n_envs, how, 1, n_steps=STEPS) as model:
        model.learn(STEPS * n_envs)
        rollouts = max(2, 40_000 // (STEPS * n_envs))
        began = time.perf_counter()
        model.learn(rollouts * STEPS * n_envs, reset_num_timesteps=False)
        return rollouts * STEPS * n_envs / (time.perf_counter() - began)


def to_475(how: str, seed: int, n_envs: int, settings: dict[str, Any]) -> float:
    """Return the seconds of ``learn`` until the mean return of 100 episodes is 475, or NaN if it is never reached."""
    curve = Curve(STOPS)
    with learner(PPO, "CartPole-v1", n_envs, how, seed, **settings) as model:
        model.learn(200_000, curve)
    return curve.solved_s


def curves(name: str) -> None:
    """Store the returns at the end of training with SB3 and with ``accelerate``, in turn for each seed."""
    kind, env_id, n_envs, total, settings = CURVES[name]
    hows = ["DummyVecEnv", "accelerate", *(["accelerate async"] if kind is not PPO else [])]
    found: dict[str, list[float]] = {how: [] for how in hows}
    for seed in range(1, SEEDS + 1):
        for how in hows:
            curve = Curve(total // 20)
            with learner(kind, env_id, n_envs, how, seed, **settings) as model:
                model.learn(total, curve)
            found[how].append(curve.points[-1][1])
            print(f"  {name}, {how}, seed {seed}: {found[how][-1]:.1f}", flush=True)
    ends = {how: {**spread(returns), **mean_and_deviation(returns)} for how, returns in found.items()}
    keep("sb3_accelerate", f"mean return at the end: {name}", ends)


def mean_and_deviation(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and the sample standard deviation."""
    return {"mean": statistics.mean(values), "deviation": statistics.stdev(values)}


def main() -> None:
    """Measure and store collection rates, then the time of PPO to a mean return of 475."""
    hows = ("DummyVecEnv", "SubprocVecEnv", "accelerate")
    for name, (env_id, n_envs) in CASES.items():
        print(f"== collecting, {name}", flush=True)
        measures: dict[str, Callable[[], float]] = {
            how: lambda how=how, env_id=env_id, n_envs=n_envs: collecting(env_id, n_envs, how) for how in hows
        }
        found = interleaved(measures, REPEATS, alternating=True)
        keep("sb3_accelerate", f"collecting, {name}", summary(found, "accelerate"))
    for name, (n_envs, settings) in TO_475.items():
        print(f"== PPO to 475, {name}", flush=True)
        found = {how: [] for how in ("DummyVecEnv", "accelerate")}
        for seed in range(1, SEEDS_TO_475 + 1):
            for how in found:
                found[how].append(to_475(how, seed, n_envs, settings))
                print(f"  {how}, seed {seed}: {found[how][-1]:.1f} s", flush=True)
        keep("sb3_accelerate", f"PPO to 475, {name}, seconds", summary(found, "accelerate"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["curves"]:
        for name in sys.argv[2:] or CURVES:
            curves(name)
    else:
        main()
