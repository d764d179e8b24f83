"""Train REINFORCE with a baseline on CartPole-v1 with parallel workers that compute the gradients.

Monte Carlo policy gradient (Williams, 1992, Machine Learning 8:229-256). In each round, every environment runs one
whole episode. The advantage of an action is the discounted return of the rest of the episode minus the prediction of
the value network. The main process takes one optimizer step with the mean of the workers' gradients. Training stops
when the mean return of the last 100 episodes reaches `--stop-return`.

    python examples/pg.py --num-workers 2

prints the env steps, the seconds and the mean return of the last 100 episodes, every 10,000 env steps and at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium as gym
import torch
from script import CommonArgs, Curve, flag, parse, save_results
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, Rollout, Stop, TorchPolicy
from parenv.returns import discounted_returns


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(500_000, "Maximum number of env steps")
    stop_return: float = flag(475.0, "Mean return of the last 100 episodes at which training stops")
    num_envs: int = flag(8, "Number of environments, each with one episode per update")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")
    learning_rate: float = flag(1e-2, "Initial learning rate, annealed linearly to 0 at total_env_steps")
    gamma: float = flag(0.99, "Discount factor")
    entropy_coef: float = flag(0.0, "Coefficient of the entropy bonus")
    value_coef: float = flag(0.5, "Coefficient of the value loss")


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
    """Policy network and value network, which share no layers."""

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
        """Return the loss of the concatenated episodes of one worker, `[N, 1, ...]`. The worker calls this function."""
        agent = policy.module
        _, log_prob, entropy, value = agent.get_action_and_value(rollout.observations, rollout.actions)
        with torch.no_grad():  # truncated episodes bootstrap from the value network
            next_values = rollout.next_values(value.detach(), agent.get_value)
        steps = (rollout.rewards, next_values, rollout.terminated, rollout.truncated)
        returns = discounted_returns(*steps, gamma=args.gamma)
        advantages = returns - value.detach()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = -(advantages * log_prob).mean()
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
    save_results(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
