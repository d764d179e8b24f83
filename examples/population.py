"""Population-based training on CartPole-v1: many agents learn, and the better ones are copied.

Jaderberg et al., 2017 (arXiv:1711.09846). Every member is an advantage actor-critic with its own optimizer, learning
rate and weight of the entropy. Members learn in training rounds. After a round, a member is compared with a few others.
If the best of them is better, a copy of it with changed hyper-parameters replaces the member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from script import CommonArgs, Curve, flag, parse
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import Fitness, LogUniform, Member, Population, Rollout, Stop, TorchPolicy, Tournament, Uniform
from parenv.returns import gae


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(2_000_000, "of all members together")
    stop_score: float = flag(500.0, "mean return of a member's fitness episodes that ends the training")
    size: int = flag(32, "members")
    num_workers: int = flag(2, "worker processes; 0: everything in one")
    num_envs: int = flag(8, "environments in which a member acts at once")
    rollout_length: int = flag(32, "steps per environment between two updates")
    every: int = flag(4_096, "env steps of a turn")
    meets: int = flag(3, "members that one meets after its turn")
    episodes: int = flag(10, "by which a member is measured after its turn")
    lineage: str = flag("lineage.jsonl", "file for every turn and copy; --plot draws it", metavar="FILE")
    gamma: float = flag(0.99, "discount of a step")


class Agent(nn.Module):
    """A policy and a value network; without exploration it takes the likeliest action."""

    def __init__(self, obs_size: int, num_actions: int, hidden: int = 64) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(obs_size, hidden), nn.Tanh(), nn.Linear(hidden, num_actions))
        self.critic = nn.Sequential(nn.Linear(obs_size, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(obs).squeeze(-1)  # type: ignore[no-any-return]

    def act(self, obs: Tensor) -> Tensor:
        return Categorical(logits=self.actor(obs), validate_args=False).sample()

    def act_best(self, obs: Tensor) -> Tensor:
        return self.actor(obs).argmax(-1)  # type: ignore[no-any-return]


def make_population(args: Args, **more: Any) -> Population:
    with gym.make(args.env_id) as env:
        assert isinstance(env.observation_space, gym.spaces.Box)
        assert isinstance(env.action_space, gym.spaces.Discrete)
        sizes = env.observation_space.shape[0], int(env.action_space.n)

    def make_member(hyperparameters: dict[str, float]) -> Member:
        agent = Agent(*sizes)
        policy = TorchPolicy(agent, "act", ("actions",), deterministic_method="act_best")
        return Member(policy, optimizer=torch.optim.Adam(agent.parameters(), lr=hyperparameters["lr"]))

    def learn(member: Member, rollout: Rollout) -> dict[str, Tensor]:
        """One update, on the worker that has the member; fields of the rollout are [T, B, ...]."""
        agent = member.policy.module
        policy, value = Categorical(logits=agent.actor(rollout.observations)), agent.value(rollout.observations)
        with torch.no_grad():
            baseline = value.detach()
            steps = (rollout.rewards, baseline, rollout.next_values(baseline, agent.value))
            advantages, returns = gae(*steps, rollout.terminated, rollout.truncated, gamma=args.gamma, gae_lambda=0.95)
        value_loss, entropy = (returns - value).square().mean(), policy.entropy().mean()
        loss = -(advantages * policy.log_prob(rollout.actions)).mean() + 0.5 * value_loss
        member.optimizer.zero_grad()
        (loss - member.hyperparameters["entropy"] * entropy).backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        member.optimizer.step()
        return {"value loss": value_loss, "entropy": entropy}

    given: dict[str, Any] = {
        "size": args.size,
        "hyperparameters": {"lr": LogUniform(1e-5, 1e-1), "entropy": Uniform(0.0, 0.05)},
        "evolve": Tournament(size=args.meets, every=args.every, perturb=0.2),
        "fitness": Fitness(episodes=args.episodes),
        "num_workers": args.num_workers,
        "num_envs": args.num_envs,
        "rollout_length": args.rollout_length,
        "seed": args.seed,
        "lineage": args.lineage,
    }
    return Population(args.env_id, make_member, learn, **{**given, **more})


def main(argv: Sequence[str] | None = None) -> Curve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    curve = Curve(print_every=200_000, window=args.size)
    with make_population(args) as population:
        for report in population.reports(Stop(args.total_env_steps, mean_return=args.stop_score)):
            curve.add(population.statistics().env_steps, [report.score])
        curve.print_last()
        print(population.statistics())
        best = population.best
        assert best is not None
        print(f"best: member {best}, score {population.scores[best]:.1f}, {population.hyperparameters[best]}")
        if args.save:
            torch.save(population.member(best).policy.module.state_dict(), args.save)
    if args.plot:
        from parenv.bench import lineage

        lineage(args.lineage, args.plot)
    return curve


if __name__ == "__main__":
    main()
