"""Gradient parallelism: gain from a second worker, and overhead of the main process.

python benchmarks/gradients.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from lib.common import interleaved, nature_body, save, summary
from torch import nn

from parenv import AsyncWorkerPool, TorchPolicy

STEP_S, ENVS_PER_WORKER, ROLLOUT_LENGTH, ROUNDS, REPEATS = 1e-3, 4, 64, 4, 7
WARM_UPS = 2


def calibrated(seconds: float) -> int:
    """Return the number of products of 64 x 64 matrices that take a given time in seconds."""
    matrix, count = np.ones((64, 64)), 200
    best = min(_timed(lambda: [matrix @ matrix for _ in range(count)]) for _ in range(20))
    return round(seconds * count / best)


def _timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Simulator(gym.Env[Any, Any]):
    """Environment with observations ``[4, 84, 84]`` in uint8 and the same amount of arithmetic in every step.

    Args:
        multiplications: Number of products of 64 x 64 matrices per step.
    """

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def __init__(self, multiplications: int) -> None:
        self._count, self._matrix = multiplications, np.ones((64, 64))
        self._observation = np.random.default_rng(0).integers(0, 256, (4, 84, 84), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        return self._observation, {}

    def step(self, action: Any) -> Any:
        """Multiply matrices."""
        for _ in range(self._count):
            self._matrix @ self._matrix
        return self._observation, 1.0, False, False, {}


class Nature(nn.Module):
    """Network of Mnih et al. 2015 with heads for policy and value: 1.7 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nature_body()
        self.policy, self.value = nn.Linear(512, 6), nn.Linear(512, 1)

    def act(self, observations: torch.Tensor) -> torch.Tensor:
        """Return sampled actions ``[N]``."""
        return torch.distributions.Categorical(logits=self.policy(self.body(observations.float() / 255))).sample()


def loss_fn(policy: Any, rollout: Any) -> torch.Tensor:
    """Return a policy gradient loss plus a value loss.

    Rewards replace the returns, because the benchmark needs only the same amount of computation.
    """
    module = policy.module
    features = module.body(rollout.observations.flatten(0, 1).float() / 255)
    log_prob = torch.distributions.Categorical(logits=module.policy(features)).log_prob(rollout.actions.flatten())
    error = rollout.rewards.flatten() - module.value(features)[:, 0]
    return (error.pow(2) - log_prob * error.detach()).mean()


def workers_rate(num_workers: int, multiplications: int, driver_shares: dict[int, list[float]]) -> float:
    """Return the samples per second of a pool whose main process applies each gradient and publishes the result.

    Args:
        num_workers: Number of workers.
        multiplications: Number of matrix products per env step.
        driver_shares: Lists by number of workers. The function appends the processor time of the main process divided
            by the duration of a round.
    """
    policy = TorchPolicy(Nature(), "act", ("actions",))
    optimizer = torch.optim.RMSprop(policy.module.parameters(), 1e-4)
    with AsyncWorkerPool(
        lambda: Simulator(multiplications), policy, num_envs=ENVS_PER_WORKER * num_workers, num_workers=num_workers,
        mode="sync", parallelism="gradient", loss_fn=loss_fn, rollout_length=ROLLOUT_LENGTH,
    ) as pool:  # fmt: skip
        samples, driver_s, began = 0, 0.0, 0.0
        for round_, gradient in enumerate(pool.gradients()):
            samples += gradient.num_samples
            arrived = time.process_time()
            gradient.assign_to(policy.module)
            optimizer.step()
            pool.publish(policy)
            driver_s += time.process_time() - arrived
            if round_ == WARM_UPS:
                samples, driver_s, began = 0, 0.0, time.perf_counter()
            if round_ == WARM_UPS + ROUNDS:
                break
        seconds = time.perf_counter() - began
    driver_shares.setdefault(num_workers, []).append(driver_s / seconds)
    return samples / seconds


def main() -> None:
    """Measure pools with one and with two workers, and save the results."""
    multiplications = calibrated(STEP_S)
    driver_shares: dict[int, list[float]] = {}
    rates = interleaved({str(n): lambda n=n: workers_rate(n, multiplications, driver_shares) for n in (1, 2)}, REPEATS)  # type: ignore[misc]
    results = {
        "samples per second by number of workers": summary(rates, "1"),
        "driver's processor time over the time of a round": {n: statistics.median(v) for n, v in driver_shares.items()},
        "parameters": sum(p.numel() for p in Nature().parameters()),
    }
    save("gradients", results)


if __name__ == "__main__":
    main()
