"""A3C on CartPole-v1 with parallel workers, which compute the gradients or only collect.

Asynchronous advantage actor-critic (Mnih et al., 2016, arXiv:1602.01783). Each worker acts for
a few steps in its CartPole copies and computes the gradients of `loss_fn`. The main process
takes an optimizer step with each gradient when it arrives, and publishes the agent. That worker
continues with the new version while the others still use older ones. Training ends when the
mean return of the last 100 episodes reaches `--stop-return`.

With `--data-parallel` the workers send rollouts, and the main process computes the gradients.
They are then gradients of the newest version, on actions of an older one. By default they are
gradients of the version that acted, and move the newest one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from script import CommonArgs, Curve, flag, keep, parse
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, GradientOptions, Rollout, Stop, TorchPolicy
from parenv.returns import gae


@dataclass
class Args(CommonArgs):
    data_parallel: bool = flag(False, "workers send rollouts instead of gradients")
    total_env_steps: int = flag(500_000, "give up after so many env steps")
    stop_return: float = flag(475.0, "mean return of the last 100 episodes that ends the training")
    num_envs: int = flag(16, "environments")
    num_workers: int = flag(4, "worker processes; 0: everything in one")
    rollout_length: int = flag(32, "steps per environment between two updates")
    learning_rate: float = flag(1e-3, "of the optimizer at the start; annealed to 0 at total_env_steps")
    gamma: float = flag(0.99, "discount of a step")
    gae_lambda: float = flag(0.95, "of the generalized advantage estimation")
    entropy_coef: float = flag(0.01, "weight of the entropy in the loss")
    value_coef: float = flag(0.5, "weight of the value loss")
    worker_max_grad_norm: float = flag(0.5, "clipped on the worker, before it sends")
    max_grad_norm: float = flag(0.5, "clipped on the driver, before its step")


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


def make_loss_fn(args: Args) -> Callable[[TorchPolicy, Rollout], Tensor]:
    def loss_fn(policy: TorchPolicy, rollout: Rollout) -> Tensor:
        """The loss of a rollout by one worker, fields of shape [T, B, ...]; runs wherever backward does."""
        agent = policy.module
        _, log_prob, entropy, value = agent.get_action_and_value(rollout.observations, rollout.actions)
        with torch.no_grad():
            baseline = value.detach()
            next_values = rollout.next_values(baseline, agent.get_value)
        steps = (rollout.rewards, baseline, next_values, rollout.terminated, rollout.truncated)
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda)
        policy_loss = -(advantages * log_prob).mean()
        value_loss = (returns - value).square().mean()
        return policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy.mean()

    return loss_fn


def make_pool(args: Args, policy: TorchPolicy) -> AsyncWorkerPool:
    clipping = GradientOptions(worker_max_norm=args.worker_max_grad_norm, max_norm=args.max_grad_norm)
    design: Any = {"parallelism": "gradient", "loss_fn": make_loss_fn(args), "gradient": clipping}
    if args.data_parallel:
        design = {"parallelism": "experience"}
    return AsyncWorkerPool(
        args.env_id,
        policy,
        mode="async",
        prefetch=0,  # a worker waits for the update that its own rollout or gradient leads to
        num_envs=args.num_envs,
        num_workers=args.num_workers,
        rollout_length=args.rollout_length,
        seed=args.seed,
        **design,
    )


class LaggingCurve(Curve):
    policy_lag: Mapping[int, int] = {}  # how many arrivals had which lag, in publishes


def main(argv: Sequence[str] | None = None) -> LaggingCurve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    curve = LaggingCurve()

    agent = make_agent(args.env_id)
    policy, loss_fn = TorchPolicy(agent), make_loss_fn(args)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    stop = Stop(args.total_env_steps, mean_return=args.stop_return)

    with make_pool(args, policy) as pool:

        def update(episode_returns: Sequence[float]) -> None:
            env_steps = pool.statistics().env_steps
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * max(0.0, 1.0 - env_steps / args.total_env_steps)
            optimizer.step()
            pool.publish(agent)
            curve.add(env_steps, episode_returns)

        if args.data_parallel:
            for rollout in pool.rollouts(stop):
                optimizer.zero_grad()
                loss_fn(policy, rollout.to("cpu")).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                update(rollout.episodes.returns.tolist())
        else:
            for gradient in pool.gradients(stop):
                gradient.assign_to(agent)
                update(gradient.episodes.returns.tolist())

        curve.policy_lag = pool.statistics().policy_lag

    curve.print_last()
    keep(args, curve, agent)
    print("policy lag in publishes, and how often:", *(f"{lag}: {count}" for lag, count in curve.policy_lag.items()))
    return curve


if __name__ == "__main__":
    main()
