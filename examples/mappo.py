"""MAPPO on simple_spread: three agents that share a policy, and a critic that sees the state of all of them.

Multi-Agent PPO (Yu et al., 2022): every agent acts on what it observes itself, while the critic, which is only needed
to learn, is given the state of the whole environment. The three have to cover three landmarks without running into one
another. Needs `pip install "parenv[agents]"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from script import CommonArgs, Curve, flag, keep, parse
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, RolloutsByPolicy, Stop, TorchPolicy
from parenv.returns import gae


@dataclass
class Args(CommonArgs):
    env_id: str = flag("simple_spread_v3", "an environment of mpe2 whose agents all have the same spaces")
    total_env_steps: int = flag(400_000, "give up after so many env steps")
    stop_return: float = flag(-50.0, "mean return of the last 100 episodes, of all agents, that ends the training")
    num_envs: int = flag(32, "environments")
    num_workers: int = flag(2, "worker processes; 0: everything in one")
    rollout_length: int = flag(50, "steps per environment between two updates")
    learning_rate: float = flag(7e-4, "of both optimizers")
    gamma: float = flag(0.95, "discount of a step")
    gae_lambda: float = flag(0.95, "of the generalized advantage estimation")
    epochs: int = flag(10, "passes over each rollout")
    minibatches: int = flag(4, "of each pass")
    clip_range: float = flag(0.2, "of the ratio of probabilities")
    entropy_coef: float = flag(0.01, "weight of the entropy in the loss")
    max_grad_norm: float = flag(0.5, "to which gradients are clipped")


def mlp(inputs: int, outputs: int, hidden: int = 64) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)]
    nn.init.orthogonal_(cast(Tensor, layers[-1].weight), 0.01)
    return nn.Sequential(*layers)


class Actor(nn.Module):
    """Acts on what one agent observes."""

    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__()
        self.logits = mlp(obs_size, num_actions)

    def policy(self, obs: Tensor) -> Categorical:
        return Categorical(logits=self.logits(obs), validate_args=False)

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        policy = self.policy(obs)
        actions = policy.sample()
        return actions, policy.log_prob(actions)


class Agent(nn.Module):
    """The actor, and the critic that sees the state."""

    def __init__(self, obs_size: int, num_actions: int, state_size: int) -> None:
        super().__init__()
        self.actor, self.critic = Actor(obs_size, num_actions), mlp(state_size, 1)

    def values(self, states: Tensor, num_agents: int) -> Tensor:
        """Return the value of the state for the row of each agent: [T, B, *state] to [T, B * agents]."""
        values: Tensor = self.critic(states).squeeze(-1)
        return values.repeat_interleave(num_agents, dim=1)


def make_env(env_id: str) -> Any:
    from importlib import import_module

    return import_module(f"mpe2.{env_id}").parallel_env()


def make_agent(env_id: str) -> Agent:
    env = make_env(env_id)
    first = env.possible_agents[0]
    sizes = env.observation_space(first).shape[0], int(env.action_space(first).n), env.state_space.shape[0]
    env.close()
    return Agent(*sizes)


def update(agent: Agent, optimizer: torch.optim.Optimizer, args: Args, rollout: RolloutsByPolicy) -> None:
    rows = rollout["agent"]
    num_agents = len(rows.agents) // len(rollout.env_ids)
    states, next_states = rollout.states, rollout.next_states()
    with torch.no_grad():
        values, next_values = (agent.values(seen, num_agents) for seen in (states, next_states))
        steps = (rows.rewards, values, next_values, rows.terminated, rows.truncated)
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda, alive=rows.alive)
    advantages = (advantages - advantages[rows.alive].mean()) / (advantages[rows.alive].std() + 1e-8)
    of_rows = [x.flatten(0, 1) for x in (rows.observations, rows.actions, rows.extras["log_prob"], advantages, returns)]
    every_state = states.repeat_interleave(num_agents, dim=1).flatten(0, 1)
    alive = rows.alive.flatten().nonzero().squeeze(-1)
    for _ in range(args.epochs):
        for part in alive[torch.randperm(len(alive))].chunk(args.minibatches):
            obs, actions, log_probs, weight, targets = (x[part] for x in of_rows)
            policy = agent.actor.policy(obs)
            ratio = (policy.log_prob(actions) - log_probs).exp()
            clipped = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
            policy_loss = -torch.min(weight * ratio, weight * clipped).mean()
            value_loss = (agent.critic(every_state[part]).squeeze(-1) - targets).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss - args.entropy_coef * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    policies = {"agent": TorchPolicy(agent.actor, "act", ("actions", "log_prob"))}
    size = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    env_id = args.env_id
    return AsyncWorkerPool(lambda: make_env(env_id), policies, mode="sync", seed=args.seed, **size)


def main(argv: Sequence[str] | None = None) -> Curve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    curve = Curve()

    agent = make_agent(args.env_id)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    with make_pool(args, agent) as pool:
        for rollout in pool.rollouts(Stop(args.total_env_steps, mean_return=args.stop_return)):
            update(agent, optimizer, args, cast(RolloutsByPolicy, rollout).to("cpu"))
            pool.publish({"agent": agent.actor})
            curve.add(pool.statistics().env_steps, rollout.episodes.returns.tolist())

    curve.print_last()
    keep(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
