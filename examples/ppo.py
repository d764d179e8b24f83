"""PPO on CartPole-v1 with parallel workers: ppo_plain.py, its collecting done by a parenv pool.

Proximal Policy Optimization (Schulman et al., 2017) with generalized advantage estimation:
a fixed number of steps is collected in a few CartPole copies, then the policy is improved on
these steps with the clipped objective for a few epochs, and so on until the mean return of
the last 100 episodes reaches `--stop-return`.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, Rollout, Stop, TorchPolicy
from parenv.returns import gae


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    seed: int = 1
    total_env_steps: int = 200_000  # give up after so many steps
    stop_return: float = 475.0  # mean return of the last 100 episodes that ends the training
    num_envs: int = 16
    num_workers: int = 2
    rollout_length: int = 32  # steps per environment between two updates
    learning_rate: float = 1e-3  # at the start; annealed to 0 at total_env_steps
    gamma: float = 0.98
    gae_lambda: float = 0.8
    epochs: int = 10
    minibatch_size: int = 256
    clip_range: float = 0.2
    entropy_coef: float = 0.0
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    torch_threads: int = 1  # the networks are far too small to gain from more


def parse_args(argv: Sequence[str] | None = None) -> Args:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in fields(Args):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default, help=" ")
    return Args(**vars(parser.parse_args(argv)))


class Curve:
    """The learning curve: (env steps, seconds, mean return of the last 100 episodes)."""

    def __init__(self, print_every: int = 10_000) -> None:
        self.points: list[tuple[int, float, float]] = []
        self.returns: deque[float] = deque(maxlen=100)
        self.print_every = print_every
        self.started = time.perf_counter()

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns)) if self.returns else 0.0

    def add(self, env_steps: int, episode_returns: Sequence[float]) -> None:
        self.returns.extend(episode_returns)
        seconds = time.perf_counter() - self.started
        previous = self.points[-1][0] if self.points else 0
        self.points.append((env_steps, seconds, self.mean_return))
        if env_steps // self.print_every > previous // self.print_every:
            self.print_last()

    def reached(self, target: float) -> bool:
        return len(self.returns) == self.returns.maxlen and self.mean_return >= target

    def print_last(self) -> None:
        steps, seconds, mean = self.points[-1]
        print(f"{steps:8d} steps  {seconds:6.1f} s  {mean:6.1f} mean return", flush=True)


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(inputs: int, outputs: int, last_gain: float, hidden: int = 64) -> nn.Sequential:
    return nn.Sequential(
        linear(inputs, hidden, 2**0.5),
        nn.Tanh(),
        linear(hidden, hidden, 2**0.5),
        nn.Tanh(),
        linear(hidden, outputs, last_gain),
    )


class Agent(nn.Module):
    """A policy network and, apart from it, a value network."""

    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__()
        self.actor = mlp(obs_size, num_actions, last_gain=0.01)
        self.critic = mlp(obs_size, 1, last_gain=1.0)

    def get_value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.critic(obs).squeeze(-1)
        return value

    def get_action_and_value(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        policy = Categorical(logits=self.actor(obs), validate_args=False)
        if action is None:
            action = policy.sample()
        return action, policy.log_prob(action), policy.entropy(), self.get_value(obs)


def make_agent(env_id: str) -> Agent:
    with gym.make(env_id) as env:
        assert isinstance(env.observation_space, gym.spaces.Box)
        assert isinstance(env.action_space, gym.spaces.Discrete)
        return Agent(env.observation_space.shape[0], int(env.action_space.n))


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    args: Args,
    env_steps: int,
    obs: Tensor,
    actions: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
) -> None:
    """Improve the agent on one rollout, given as blocks of shape [T, num_envs, ...]."""
    for group in optimizer.param_groups:
        group["lr"] = args.learning_rate * max(0.0, 1.0 - env_steps / args.total_env_steps)
    batch = [x.flatten(0, 1) for x in (obs, actions, log_probs, advantages, returns)]
    for _ in range(args.epochs):
        for rows in torch.randperm(len(batch[0])).split(args.minibatch_size):
            b_obs, b_actions, b_log_probs, b_advantages, b_returns = (x[rows] for x in batch)
            _, log_prob, entropy, value = agent.get_action_and_value(b_obs, b_actions)
            ratio = (log_prob - b_log_probs).exp()
            clipped = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
            weight = (b_advantages - b_advantages.mean()) / (b_advantages.std() + 1e-8)
            policy_loss = -torch.min(weight * ratio, weight * clipped).mean()
            value_loss = (b_returns - value).square().mean()
            loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    def process(policy: TorchPolicy, rollout: Rollout) -> dict[str, object]:
        next_values = rollout.next_values(rollout.extras["value"], policy.module.get_value)
        steps = (rollout.rewards, rollout.extras["value"], next_values, rollout.terminated, rollout.truncated)
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda)
        return {"advantages": advantages, "returns": returns}

    size = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    return AsyncWorkerPool(args.env_id, TorchPolicy(agent), mode="sync", seed=args.seed, postprocess=process, **size)


def main(argv: Sequence[str] | None = None) -> Curve:
    args = parse_args(argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    curve = Curve()

    agent = make_agent(args.env_id)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    with make_pool(args, agent) as pool:
        for rollout in pool.rollouts(Stop(args.total_env_steps, mean_return=args.stop_return)):
            env_steps = pool.statistics().env_steps
            block = rollout.to("cpu")
            extras = [block.extras[name] for name in ("log_prob", "advantages", "returns")]
            update(agent, optimizer, args, env_steps, block.observations, block.actions, *extras)
            pool.publish(agent)
            curve.add(env_steps, rollout.episodes.returns.tolist())

    curve.print_last()
    return curve


if __name__ == "__main__":
    main()
