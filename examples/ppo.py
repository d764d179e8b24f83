"""Train PPO on CartPole-v1 with parallel workers.

Proximal Policy Optimization (Schulman et al., 2017, arXiv:1707.06347) with generalized advantage estimation (Schulman
et al., 2015, arXiv:1506.02438). Each iteration collects a rollout of fixed length from all environments. Several epochs
of minibatch updates then maximize the clipped objective. Training stops when the mean return of the last 100 episodes
reaches `--stop-return`.

The first program has no workers, the second one uses the workers of parenv:

    python examples/ppo_plain.py
    python examples/ppo.py --num-workers 2

Both print the env steps, the seconds and the mean return of the last 100 episodes, every 10,000 env steps and at the
end.
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
from parenv.returns import gae


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(200_000, "Maximum number of env steps")
    stop_return: float = flag(475.0, "Mean return of the last 100 episodes at which training stops")
    num_envs: int = flag(16, "Number of environments")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")
    rollout_length: int = flag(32, "Env steps per environment and rollout")
    learning_rate: float = flag(1e-3, "Initial learning rate, annealed linearly to 0 at total_env_steps")
    gamma: float = flag(0.98, "Discount factor")
    gae_lambda: float = flag(0.8, "Lambda of generalized advantage estimation (GAE)")
    epochs: int = flag(10, "Number of passes over each rollout")
    minibatch_size: int = flag(256, "Number of transitions per minibatch")
    clip_range: float = flag(0.2, "Clipping range of the probability ratio")
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
    """Update the agent with one rollout, given as tensors of shape [T, num_envs, ...]."""
    for group in optimizer.param_groups:
        group["lr"] = args.learning_rate * max(0.0, 1.0 - env_steps / args.total_env_steps)
    batch = [x.flatten(0, 1) for x in (obs, actions, log_probs, advantages, returns)]
    for _ in range(args.epochs):
        for indices in torch.randperm(len(batch[0])).split(args.minibatch_size):
            b_obs, b_actions, b_log_probs, b_advantages, b_returns = (x[indices] for x in batch)
            _, log_prob, entropy, value = agent.get_action_and_value(b_obs, b_actions)
            ratio = (log_prob - b_log_probs).exp()
            clipped = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
            b_advantages = (b_advantages - b_advantages.mean()) / (b_advantages.std() + 1e-8)
            policy_loss = -torch.min(b_advantages * ratio, b_advantages * clipped).mean()
            value_loss = (b_returns - value).square().mean()
            loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    def targets(policy: TorchPolicy, rollout: Rollout) -> dict[str, object]:  # called on the workers
        next_values = rollout.next_values(rollout.extras["value"], policy.module.get_value)
        steps = (rollout.rewards, rollout.extras["value"], next_values, rollout.terminated, rollout.truncated)
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda)
        return {"advantages": advantages, "returns": returns}

    sizes = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    return AsyncWorkerPool(args.env_id, TorchPolicy(agent), mode="sync", seed=args.seed, postprocess=targets, **sizes)


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
            batch = rollout.to("cpu")  # tensors that share memory with the rollout
            extras = [batch.extras[name] for name in ("log_prob", "advantages", "returns")]
            update(agent, optimizer, args, env_steps, batch.observations, batch.actions, *extras)
            pool.publish(agent)
            curve.add(env_steps, rollout.episodes.returns.tolist())

    curve.print_last()
    save_results(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
