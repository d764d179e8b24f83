"""Train A2C on CartPole-v1 with parallel workers that compute the gradients.

Advantage actor-critic, the synchronous variant of A3C (Mnih et al., 2016, arXiv:1602.01783). In each round, all workers
use the same version of the agent. Each worker collects a short rollout and computes the gradient of `loss_fn`. The main
process takes one optimizer step with the mean of the gradients and publishes the agent. Training stops when the mean
return of the last 100 episodes reaches `--stop-return`.

    python examples/a2c.py --num-workers 2

prints the env steps, the seconds and the mean return of the last 100 episodes, every 10,000 env steps and at the end.
The last line has the metrics of the last gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium as gym
import torch
from script import CommonArgs, Curve, flag, parse, save_results
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, GradientOptions, Rollout, Stop, TorchPolicy
from parenv.returns import gae


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(400_000, "Maximum number of env steps")
    stop_return: float = flag(475.0, "Mean return of the last 100 episodes at which training stops")
    num_envs: int = flag(16, "Number of environments")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")
    rollout_length: int = flag(16, "Env steps per environment and rollout")
    learning_rate: float = flag(3e-3, "Initial learning rate, annealed linearly to 0 at total_env_steps")
    gamma: float = flag(0.99, "Discount factor")
    gae_lambda: float = flag(0.95, "Lambda of generalized advantage estimation (GAE)")
    entropy_coef: float = flag(0.0, "Coefficient of the entropy bonus")
    value_coef: float = flag(0.5, "Coefficient of the value loss")
    max_grad_norm: float = flag(0.5, "Maximum norm of the gradient")


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
    def loss_fn(policy: TorchPolicy, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and metrics of a rollout `[T, B, ...]`. The worker that collected it calls this function."""
        agent = policy.module
        _, log_prob, entropy, value = agent.get_action_and_value(rollout.observations, rollout.actions)
        with torch.no_grad():
            baseline = value.detach()
            next_values = rollout.next_values(baseline, agent.get_value)
        steps = (rollout.rewards, baseline, next_values, rollout.terminated, rollout.truncated)
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda)
        policy_loss = -(advantages * log_prob).mean()
        value_loss = (returns - value).square().mean()
        loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy.mean()
        return loss, {"value loss": value_loss, "entropy": entropy.mean()}

    return AsyncWorkerPool(
        args.env_id,
        TorchPolicy(agent),
        mode="sync",
        parallelism="gradient",
        loss_fn=loss_fn,
        gradient=GradientOptions(max_norm=args.max_grad_norm),
        num_envs=args.num_envs,
        num_workers=args.num_workers,
        rollout_length=args.rollout_length,
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
    print(*(f"{name} {value:.3f}" for name, value in gradient.metrics.items()), sep=", ")
    return curve


if __name__ == "__main__":
    main()
