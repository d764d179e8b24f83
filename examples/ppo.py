"""PPO on CartPole-v1 with parallel workers: ppo_plain.py, its collecting done by a parenv pool.

Proximal Policy Optimization (Schulman et al., 2017) with generalized advantage estimation.
Each iteration collects a fixed number of steps in a few CartPole copies, and then improves the
policy on them for a few epochs with the clipped objective. Training ends when the mean return
of the last 100 episodes reaches `--stop-return`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium as gym
import torch
from script import CommonArgs, Curve, flag, keep, parse
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, Rollout, Stop, TorchPolicy
from parenv.returns import gae


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(200_000, "give up after so many env steps")
    stop_return: float = flag(475.0, "mean return of the last 100 episodes that ends the training")
    num_envs: int = flag(16, "environments")
    num_workers: int = flag(2, "worker processes; 0: everything in one")
    rollout_length: int = flag(32, "steps per environment between two updates")
    learning_rate: float = flag(1e-3, "of the optimizer at the start; annealed to 0 at total_env_steps")
    gamma: float = flag(0.98, "discount of a step")
    gae_lambda: float = flag(0.8, "of the generalized advantage estimation")
    epochs: int = flag(10, "passes over each rollout")
    minibatch_size: int = flag(256, "samples of a gradient step")
    clip_range: float = flag(0.2, "of the ratio of probabilities")
    entropy_coef: float = flag(0.0, "weight of the entropy in the loss")
    value_coef: float = flag(0.5, "weight of the value loss")
    max_grad_norm: float = flag(0.5, "to which gradients are clipped")


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
    args = parse(Args, argv)
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
    keep(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
