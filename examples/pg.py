"""Monte-Carlo policy gradient on CartPole-v1 with parallel workers that compute the gradients.

REINFORCE (Williams, 1992) with a learned baseline. In each round, each CartPole copy runs one
whole episode. An action becomes more likely if the rest of its episode was better than the
value network had predicted. Training ends when the mean return of the last 100 episodes
reaches `--stop-return`.
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
from parenv.returns import discounted_returns


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(500_000, "give up after so many env steps")
    stop_return: float = flag(475.0, "mean return of the last 100 episodes that ends the training")
    num_envs: int = flag(8, "episodes between two updates")
    num_workers: int = flag(2, "worker processes; 0: everything in one")
    learning_rate: float = flag(1e-2, "of the optimizer at the start; annealed to 0 at total_env_steps")
    gamma: float = flag(0.99, "discount of a step")
    entropy_coef: float = flag(0.0, "weight of the entropy in the loss")
    value_coef: float = flag(0.5, "weight of the value loss")


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


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    def loss_fn(policy: TorchPolicy, rollout: Rollout) -> Tensor:
        """The loss of one worker's episodes, one behind the other: fields of shape [N, 1, ...]."""
        agent = policy.module
        _, log_prob, entropy, value = agent.get_action_and_value(rollout.observations, rollout.actions)
        with torch.no_grad():  # what the time limit cut off an episode is estimated by the value network
            next_values = rollout.next_values(value.detach(), agent.get_value)
        steps = (rollout.rewards, next_values, rollout.terminated, rollout.truncated)
        returns = discounted_returns(*steps, gamma=args.gamma)
        advantages = returns - value.detach()
        weight = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = -(weight * log_prob).mean()
        value_loss = (returns - value).square().mean()
        return policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy.mean()

    return AsyncWorkerPool(
        args.env_id,
        TorchPolicy(agent),
        mode="sync",
        parallelism="gradient",
        loss_fn=loss_fn,
        num_envs=args.num_envs,
        num_workers=args.num_workers,
        rollout_length="episode",
        seed=args.seed,
    )


def main(argv: Sequence[str] | None = None) -> Curve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    curve = Curve()

    agent = make_agent(args.env_id)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    with make_pool(args, agent) as pool:
        for gradient in pool.gradients(Stop(args.total_env_steps, mean_return=args.stop_return)):
            env_steps = pool.statistics().env_steps
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * max(0.0, 1.0 - env_steps / args.total_env_steps)
            gradient.assign_to(agent)
            optimizer.step()
            pool.publish(agent)
            curve.add(env_steps, gradient.episodes.returns.tolist())

    curve.print_last()
    keep(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
