"""PPO on CartPole-v1 in one process, with Gymnasium and PyTorch only.

Proximal Policy Optimization (Schulman et al., 2017) with generalized advantage estimation.
Each iteration collects a fixed number of steps in a few CartPole copies, and then improves the
policy on them for a few epochs with the clipped objective. Training ends when the mean return
of the last 100 episodes reaches `--stop-return`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from script import CommonArgs, Curve, flag, keep, parse
from torch import Tensor, nn
from torch.distributions import Categorical


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(200_000, "give up after so many env steps")
    stop_return: float = flag(475.0, "mean return of the last 100 episodes that ends the training")
    num_envs: int = flag(16, "environments")
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


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Return advantages and value targets. `next_values` are the values of the true next observations."""
    advantages = torch.zeros_like(rewards)
    carry = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        # A terminated episode is worth nothing more; a truncated one would have gone on.
        delta = rewards[t] + gamma * next_values[t] * ~terminated[t] - values[t]
        carry = delta + gamma * gae_lambda * carry * ~(terminated[t] | truncated[t])
        advantages[t] = carry
    return advantages, advantages + values


def main(argv: Sequence[str] | None = None) -> Curve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    curve = Curve()

    agent = make_agent(args.env_id)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    envs = SyncVectorEnv(
        [lambda: gym.make(args.env_id) for _ in range(args.num_envs)],
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    obs_shape = envs.single_observation_space.shape
    assert obs_shape is not None

    block = (args.rollout_length, args.num_envs)
    observations = torch.zeros(block + obs_shape)
    actions = torch.zeros(block, dtype=torch.long)
    log_probs, rewards, values, final_values = (torch.zeros(block) for _ in range(4))
    terminated, truncated = (torch.zeros(block, dtype=torch.bool) for _ in range(2))

    env_steps = 0
    running_returns = np.zeros(args.num_envs)
    next_obs = torch.as_tensor(envs.reset(seed=args.seed)[0])
    while env_steps < args.total_env_steps and not curve.reached(args.stop_return):
        episode_returns: list[float] = []
        for t in range(args.rollout_length):
            observations[t] = next_obs
            with torch.no_grad():
                actions[t], log_probs[t], _, values[t] = agent.get_action_and_value(next_obs)
            obs, reward, term, trunc, infos = envs.step(actions[t].numpy())
            next_obs = torch.as_tensor(obs)
            rewards[t] = torch.as_tensor(reward)
            terminated[t] = torch.as_tensor(term)
            truncated[t] = torch.as_tensor(trunc)

            # If an episode has ended, next_obs is already the first observation of the next episode.
            # The last observation of the old episode, whose value a truncated episode needs, is in infos.
            if trunc.any():
                final_obs = torch.as_tensor(np.stack(infos["final_obs"][trunc]))
                with torch.no_grad():
                    final_values[t, trunc] = agent.get_value(final_obs)

            running_returns += reward
            ended = term | trunc
            episode_returns.extend(running_returns[ended].tolist())
            running_returns[ended] = 0.0
            env_steps += args.num_envs
        with torch.no_grad():
            next_values = torch.cat([values[1:], agent.get_value(next_obs).unsqueeze(0)])
        next_values = torch.where(truncated, final_values, next_values)
        advantages, returns = gae(rewards, values, next_values, terminated, truncated, args.gamma, args.gae_lambda)

        update(
            agent,
            optimizer,
            args,
            env_steps,
            observations,
            actions,
            log_probs,
            advantages,
            returns,
        )
        curve.add(env_steps, episode_returns)

    envs.close()
    curve.print_last()
    keep(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
