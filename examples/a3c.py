"""Train A3C on CartPole-v1 with parallel workers.

Asynchronous advantage actor-critic (Mnih et al., 2016, arXiv:1602.01783). Each worker collects a short rollout and
computes the gradient of `loss_fn`. The main process takes an optimizer step with each gradient as soon as it arrives,
and publishes the agent. That worker continues with the new version, while the other workers still use older versions.
Training stops when the mean return of the last 100 episodes reaches `--stop-return`.

By default, a gradient is computed with the weights of the version that acted, and applied to the newest version. With
`--data-parallel`, workers send rollouts, and the main process computes the gradient with the newest weights.

    python examples/a3c.py --num-workers 4

prints the env steps, the seconds and the mean return of the last 100 episodes, every 10,000 env steps and at the end.
The last line has the number of updates by policy lag, which is the number of publishes since the worker's version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from script import CommonArgs, Curve, flag, parse, save_results
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, GradientOptions, Rollout, Stop, TorchPolicy
from parenv.returns import gae


@dataclass
class Args(CommonArgs):
    data_parallel: bool = flag(False, "Workers send rollouts, and the main process computes the gradients")
    total_env_steps: int = flag(500_000, "Maximum number of env steps")
    stop_return: float = flag(475.0, "Mean return of the last 100 episodes at which training stops")
    num_envs: int = flag(16, "Number of environments")
    num_workers: int = flag(4, "Number of worker processes; 0: run everything in the main process")
    rollout_length: int = flag(32, "Env steps per environment and rollout")
    learning_rate: float = flag(1e-3, "Initial learning rate, annealed linearly to 0 at total_env_steps")
    gamma: float = flag(0.99, "Discount factor")
    gae_lambda: float = flag(0.95, "Lambda of generalized advantage estimation (GAE)")
    entropy_coef: float = flag(0.01, "Coefficient of the entropy bonus")
    value_coef: float = flag(0.5, "Coefficient of the value loss")
    worker_max_grad_norm: float = flag(0.5, "Maximum norm of a worker's gradient, clipped on the worker")
    max_grad_norm: float = flag(0.5, "Maximum norm of the gradient of an optimizer step")


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


def make_loss_fn(args: Args) -> Callable[[TorchPolicy, Rollout], Tensor]:
    def loss_fn(policy: TorchPolicy, rollout: Rollout) -> Tensor:
        """Return the loss of a rollout `[T, B, ...]`, on the worker or, with `--data-parallel`, in the main process."""
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
    options = GradientOptions(worker_max_norm=args.worker_max_grad_norm, max_norm=args.max_grad_norm)
    parallelism: Any = {"parallelism": "gradient", "loss_fn": make_loss_fn(args), "gradient": options}
    if args.data_parallel:
        parallelism = {"parallelism": "experience"}
    return AsyncWorkerPool(
        args.env_id,
        policy,
        mode="async",
        prefetch=0,  # a worker continues after the update with its own rollout or gradient
        num_envs=args.num_envs,
        num_workers=args.num_workers,
        rollout_length=args.rollout_length,
        seed=args.seed,
        **parallelism,
    )


class LaggingCurve(Curve):
    """Learning curve with the policy lag of the updates."""

    policy_lag: Mapping[int, int] = {}  # number of updates by policy lag in publishes


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
    save_results(args, curve, agent)
    print(f"updates by policy lag: {dict(curve.policy_lag)}")
    return curve


if __name__ == "__main__":
    main()
