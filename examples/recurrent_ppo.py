"""PPO with a memory, on a CartPole-v1 that does not show velocities, with parallel workers.

The memory is a GRU (Cho et al., 2014, arXiv:1406.1078). Its recurrent state is the policy's carry: workers pass it from
step to step and reset it in each episode. A rollout contains the first one. The update (PPO, Schulman et al., 2017)
runs the GRU over whole rollouts again, from that state. `--no-masked` shows the velocities, for comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from gymnasium.wrappers import TransformObservation
from script import CommonArgs, Curve, flag, keep, parse
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, Rollout, Stop, TorchPolicy
from parenv.returns import gae

SHOWN = [0, 2]
"""Where the cart is, and the angle of the pole."""


@dataclass
class Args(CommonArgs):
    masked: bool = flag(True, "hide the velocities")
    total_env_steps: int = flag(300_000, "give up after so many env steps")
    stop_return: float = flag(475.0, "mean return of the last 100 episodes that ends the training")
    num_envs: int = flag(16, "environments")
    num_workers: int = flag(2, "worker processes; 0: everything in one")
    rollout_length: int = flag(32, "steps per environment between two updates, through which gradients flow")
    learning_rate: float = flag(1e-3, "of the optimizer at the start; annealed to 0 at total_env_steps")
    gamma: float = flag(0.98, "discount of a step")
    gae_lambda: float = flag(0.8, "of the generalized advantage estimation")
    epochs: int = flag(10, "passes over each rollout")
    minibatch_envs: int = flag(4, "environments whose whole rollouts make a gradient step")
    clip_range: float = flag(0.2, "of the ratio of probabilities")
    entropy_coef: float = flag(0.0, "weight of the entropy in the loss")
    value_coef: float = flag(0.5, "weight of the value loss")
    max_grad_norm: float = flag(0.5, "to which gradients are clipped")


def env_maker(args: Args) -> Callable[[], Any]:
    env_id, masked = args.env_id, args.masked

    def make() -> Any:
        env = gym.make(env_id)
        if not masked:
            return env
        limits = env.observation_space.high[SHOWN] / 2  # where the episode ends
        seen = gym.spaces.Box(-2.0, 2.0, (len(SHOWN),))
        return TransformObservation(env, lambda observation: observation[SHOWN] / limits, seen)

    return make


class Agent(nn.Module):
    """One GRU, on which policy and value look."""

    def __init__(self, obs_size: int, num_actions: int, hidden: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(obs_size, hidden), nn.Tanh())
        self.memory = nn.GRUCell(hidden, hidden)
        self.actor, self.critic = nn.Linear(hidden, num_actions), nn.Linear(hidden, 1)
        for layer, gain in ((self.encoder[0], 2**0.5), (self.actor, 0.01), (self.critic, 1.0)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def initial_carry(self, batch: int) -> Tensor:
        return torch.zeros(batch, self.memory.hidden_size)

    def policy_and_value(self, hidden: Tensor) -> tuple[Categorical, Tensor]:
        return Categorical(logits=self.actor(hidden), validate_args=False), self.critic(hidden).squeeze(-1)

    def act(self, obs: Tensor, carry: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        hidden = self.memory(self.encoder(obs), carry)
        policy, value = self.policy_and_value(hidden)
        actions = policy.sample()
        return actions, policy.log_prob(actions), value, hidden, hidden

    def run_over(self, obs: Tensor, carry: Tensor, ends: Tensor) -> tuple[Categorical, Tensor]:
        """Act again on blocks [T, B, ...]; what has ended at t is forgotten at t + 1."""
        hiddens = []
        for encoded, ended in zip(self.encoder(obs), ends, strict=True):
            hiddens.append(self.memory(encoded, carry))
            carry = hiddens[-1] * ~ended[:, None]
        return self.policy_and_value(torch.stack(hiddens))


def make_agent(args: Args) -> Agent:
    with env_maker(args)() as env:
        return Agent(env.observation_space.shape[0], int(env.action_space.n))


def update(agent: Agent, optimizer: torch.optim.Optimizer, args: Args, env_steps: int, rollout: Rollout) -> None:
    """Improve the agent on one rollout, some of its environments at a time."""
    for group in optimizer.param_groups:
        group["lr"] = args.learning_rate * max(0.0, 1.0 - env_steps / args.total_env_steps)
    names = ("log_prob", "advantages", "returns")
    batch = [rollout.observations, rollout.actions, rollout.terminated | rollout.truncated]
    batch += [rollout.extras[name] for name in names]
    for _ in range(args.epochs):
        for columns in torch.randperm(batch[0].shape[1]).split(args.minibatch_envs):
            obs, actions, ends, log_probs, advantages, returns = (x[:, columns] for x in batch)
            policy, value = agent.run_over(obs, rollout.initial_carry[columns], ends)
            ratio = (policy.log_prob(actions) - log_probs).exp()
            clipped = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
            weight = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            policy_loss = -torch.min(weight * ratio, weight * clipped).mean()
            value_loss = (returns - value).square().mean()
            loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    def process(policy: TorchPolicy, rollout: Rollout) -> dict[str, object]:
        agent = policy.module
        following = torch.as_tensor(rollout.next_observations())
        hidden = torch.as_tensor(rollout.extras["hidden"])
        remembered = agent.memory(agent.encoder(following.flatten(0, 1)), hidden.flatten(0, 1))
        next_values = agent.policy_and_value(remembered)[1].reshape(hidden.shape[:2])
        steps = (rollout.rewards, rollout.extras["value"], next_values, rollout.terminated, rollout.truncated)
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda)
        return {"advantages": advantages, "returns": returns}

    policy = TorchPolicy(agent, "act", ("actions", "log_prob", "value", "hidden", "carry"))
    size = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    return AsyncWorkerPool(env_maker(args), policy, mode="sync", seed=args.seed, postprocess=process, **size)


def main(argv: Sequence[str] | None = None) -> Curve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    curve = Curve()

    agent = make_agent(args)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    with make_pool(args, agent) as pool:
        for rollout in pool.rollouts(Stop(args.total_env_steps, mean_return=args.stop_return)):
            env_steps = pool.statistics().env_steps
            update(agent, optimizer, args, env_steps, rollout.to("cpu"))
            pool.publish(agent)
            curve.add(env_steps, rollout.episodes.returns.tolist())

    curve.print_last()
    keep(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
