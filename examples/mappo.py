"""Train MAPPO on simple_spread: three agents share a policy, and a centralized critic sees the global state.

Multi-Agent PPO (Yu et al., 2022, arXiv:2103.01955). Each agent acts on its own observation. The critic, which only
training needs, evaluates the state of the whole environment. The agents have to cover three landmarks and avoid
collisions. Training stops when the mean return of all agents over the last 100 episodes reaches `--stop-return`.

    pip install ".[agents]"
    python examples/mappo.py --num-workers 2

prints the env steps, the seconds and the mean return of the last 100 episodes, every 10,000 env steps and at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from script import CommonArgs, Curve, flag, parse, save_results
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, Stop, TorchPolicy
from parenv.returns import gae
from parenv.rollouts import RolloutsByPolicy


@dataclass
class Args(CommonArgs):
    env_id: str = flag("simple_spread_v3", "Module of an mpe2 environment whose agents have equal spaces")
    total_env_steps: int = flag(400_000, "Maximum number of env steps")
    stop_return: float = flag(-50.0, "Mean return of all agents over the last 100 episodes at which training stops")
    num_envs: int = flag(32, "Number of environments")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")
    rollout_length: int = flag(50, "Env steps per environment and rollout")
    learning_rate: float = flag(7e-4, "Learning rate of the actor and the critic")
    gamma: float = flag(0.95, "Discount factor")
    gae_lambda: float = flag(0.95, "Lambda of generalized advantage estimation (GAE)")
    epochs: int = flag(10, "Number of passes over each rollout")
    minibatches: int = flag(4, "Number of minibatches per pass")
    clip_range: float = flag(0.2, "Clipping range of the probability ratio")
    entropy_coef: float = flag(0.01, "Coefficient of the entropy bonus")
    max_grad_norm: float = flag(0.5, "Maximum norm of the gradient")


def mlp(inputs: int, outputs: int, hidden: int = 64) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)]
    nn.init.orthogonal_(cast(Tensor, layers[-1].weight), 0.01)
    return nn.Sequential(*layers)


class Actor(nn.Module):
    """Decentralized policy: acts on the observation of one agent."""

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
    """Actor of all agents, and a centralized critic of the global state."""

    def __init__(self, obs_size: int, num_actions: int, state_size: int) -> None:
        super().__init__()
        self.actor, self.critic = Actor(obs_size, num_actions), mlp(state_size, 1)

    def values(self, states: Tensor, num_agents: int) -> Tensor:
        """Return the values `[T, B * num_agents]` of states `[T, B, *state]`, repeated for the agents of each state."""
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
    """Update the agent with one rollout. Rows of `rollout["agent"]` are agents: `[T, num_envs * num_agents, ...]`."""
    rows = rollout["agent"]
    num_agents = len(rows.agents) // len(rollout.env_ids)
    states, next_states = rollout.states, rollout.next_states()
    with torch.no_grad():
        values, next_values = (agent.values(s, num_agents) for s in (states, next_states))
        steps = (rows.rewards, values, next_values, rows.terminated, rows.truncated)
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda, alive=rows.alive)
    advantages = (advantages - advantages[rows.alive].mean()) / (advantages[rows.alive].std() + 1e-8)
    batch = [x.flatten(0, 1) for x in (rows.observations, rows.actions, rows.extras["log_prob"], advantages, returns)]
    row_states = states.repeat_interleave(num_agents, dim=1).flatten(0, 1)
    # Only entries in which the agent is alive are transitions.
    alive = rows.alive.flatten().nonzero().squeeze(-1)
    for _ in range(args.epochs):
        for indices in alive[torch.randperm(len(alive))].chunk(args.minibatches):
            obs, actions, log_probs, b_advantages, targets = (x[indices] for x in batch)
            policy = agent.actor.policy(obs)
            ratio = (policy.log_prob(actions) - log_probs).exp()
            clipped = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
            policy_loss = -torch.min(b_advantages * ratio, b_advantages * clipped).mean()
            value_loss = (agent.critic(row_states[indices]).squeeze(-1) - targets).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss - args.entropy_coef * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    policies = {"agent": TorchPolicy(agent.actor, "act", ("actions", "log_prob"))}
    sizes = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    env_id = args.env_id
    return AsyncWorkerPool(lambda: make_env(env_id), policies, mode="sync", seed=args.seed, **sizes)


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
    save_results(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
