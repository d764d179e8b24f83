"""Small training run that can be interrupted: ``python cartpole_training.py FOLDER UPDATES NUM_WORKERS EVERY_S``.

It prints a line after each update, and a digest of the weights at the end. After each update, it waits for a byte or
for the end of its input.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.classic_control import CartPoleEnv

import parenv
from parenv import AsyncWorkerPool, Stop, TorchPolicy
from parenv.returns import discounted_returns

NUM_ENVS, LENGTH = 4, 8


class SavedCartPole(CartPoleEnv):
    """CartPole with a state that can be saved."""

    def get_state(self) -> Any:
        return {"state": np.array(self.state), "steps_beyond": self.steps_beyond_terminated}

    def set_state(self, data: Any) -> None:
        self.state, self.steps_beyond_terminated = np.array(data["state"]), data["steps_beyond"]


def make() -> Any:
    return gym.wrappers.TimeLimit(SavedCartPole(), 100)


class Agent(torch.nn.Module):
    """Actor that samples actions unless they are given, and returns their log-probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def act(self, observations: Any, actions: Any = None) -> Any:
        distribution = torch.distributions.Categorical(logits=self.logits(observations))
        actions = distribution.sample() if actions is None else actions
        return actions, distribution.log_prob(actions)


def train(
    folder: Any,
    updates: int,
    *,
    num_workers: int = 0,
    every_s: float = 600.0,
    after_update: Callable[[int, AsyncWorkerPool], object] = lambda steps, pool: None,
    **options: Any,
) -> tuple[dict[str, Any], Any]:
    """Train in a folder; return the weights and the statistics of the pool."""
    torch.manual_seed(1)
    generator = np.random.default_rng(2)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    state = {"agent": agent, "optimizer": optimizer, "schedule": schedule, "generator": generator}
    policy = TorchPolicy(agent, "act", ("actions", "log_prob"))
    arguments: dict[str, Any] = {"num_envs": NUM_ENVS, "rollout_length": LENGTH, "mode": "sync", "seed": 3} | options
    with (
        AsyncWorkerPool(make, policy, num_workers=num_workers, **arguments) as pool,
        parenv.resumable(folder, pool=pool, state=state, every_s=every_s) as run,
    ):
        for rollout in pool.rollouts(Stop(env_steps=updates * NUM_ENVS * LENGTH)):
            learn(agent, optimizer, rollout.to("cpu"), generator)
            schedule.step()
            # After every other update, the published weights differ from the learned ones.
            if (run.steps + 1) % 2:
                pool.publish(agent, epsilon=float(run.steps))
            after_update(run.steps + 1, pool)
            run.step()
        statistics = pool.statistics()
    return agent.state_dict(), statistics


def learn(agent: Agent, optimizer: Any, batch: Any, generator: Any) -> None:
    """Take a policy gradient step with noise from every random number generator."""
    returns = discounted_returns(batch.rewards, torch.zeros_like(batch.rewards), batch.terminated, batch.truncated)
    _, log_prob = agent.act(batch.observations, batch.actions)
    noise = torch.rand(()) + float(np.random.rand()) + generator.random()
    loss = -(log_prob * (returns - returns.mean())).mean() * (1 + 0.1 * noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def digest(weights: dict[str, Any]) -> str:
    return hashlib.sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest()


def report(steps: int, pool: Any) -> None:
    print("update", steps, flush=True)
    os.read(sys.stdin.fileno(), 1)


if __name__ == "__main__":
    where, count, workers, seconds = sys.argv[1:]
    np.random.seed(4)
    final, _ = train(
        where,
        int(count),
        num_workers=int(workers),
        every_s=float(seconds),
        after_update=report,
    )
    print("weights", digest(final), flush=True)
