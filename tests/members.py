"""Small population with weights that can be compared, for tests with local and remote workers."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from parenv import Population, Stop, TorchPolicy, WorkerOptions
from parenv.population import Fitness, LogUniform, Member, Report, Tournament


class Short(gym.Env[Any, Any]):
    """Environment with episodes of three steps, whose reward is the action."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), float(action), self.steps == 3, False, {}


class Net(torch.nn.Module):
    """Actor of a member, which samples actions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(3, 2)

    def act(self, observations: Any) -> Any:
        distribution = torch.distributions.Categorical(logits=self.body(observations))
        actions = distribution.sample()
        return actions, distribution.log_prob(actions)


def make_learner(hyperparameters: dict[str, float]) -> Member:
    net = Net()
    policy = TorchPolicy(net, "act", ("actions", "log_prob"))
    return Member(policy, optimizer=torch.optim.Adam(net.parameters(), lr=hyperparameters["lr"]), updates=0)


def learn(member: Member, rollout: Any) -> dict[str, Any]:
    logits = member.policy.module.body(rollout.observations)
    log_prob = torch.distributions.Categorical(logits=logits).log_prob(rollout.actions)
    torch.testing.assert_close(log_prob, rollout.extras["log_prob"])
    loss = -(log_prob * (rollout.rewards - 0.5)).mean()
    member.optimizer.zero_grad()
    loss.backward()
    member.optimizer.step()
    member.updates += 1
    lr, weight = member.optimizer.param_groups[0]["lr"], member.policy.module.body.weight.double().sum()
    return {"lr": lr, "weight": weight, "pid": os.getpid(), "updates": member.updates}


def population(**more: Any) -> Population:
    given: dict[str, Any] = {
        "env_fn": Short,
        "make_member": make_learner,
        "learn": learn,
        "size": 6,
        "num_workers": 2,
        "num_envs": 2,
        "rollout_length": 8,
        "hyperparameters": {"lr": LogUniform(1e-3, 1e-1)},
        "evolve": Tournament(size=2, every=32, resample=0.2),
        "fitness": Fitness(episodes=3, deterministic=False),
        "mode": "sync",
        "seed": 5,
        **more,
    }
    given["workers"] = replace(given.get("workers", WorkerOptions()), preload=(__name__,))
    return Population(**given)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def first_turns(path: Path, turns: int) -> list[dict[str, Any]]:
    """Return a lineage up to a number of training rounds, without the decisions after them."""
    rows = rows_of(path)
    last = [number for number, row in enumerate(rows) if row["event"] == "turn"][turns - 1]
    return rows[: last + 1]


def known_of(report: Report) -> Any:
    """Return the parts of a report that must be bitwise identical, with a sum of the weights."""
    assert report.metrics is not None
    return report.member, report.turn, report.score, report.metrics["weight"], report.episodes.returns.tolist()


def after(path: Path, turns: int, **more: Any) -> tuple[Any, Any]:
    """Run a population for a number of training rounds; return its lineage and its reports."""
    with population(lineage=path, **more) as members:
        known = [known_of(report) for report in members.reports(Stop(env_steps=32 * turns))]
    return first_turns(path, turns), known
