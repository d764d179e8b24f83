"""Train a population of actor-critic agents on CartPole-v1 with parallel workers.

Population-based training (Jaderberg et al., 2017, arXiv:1711.09846). Each member is an advantage actor-critic agent
with its own optimizer, learning rate and entropy coefficient. Members learn in training rounds on the workers. After a
round, a member is compared with a few random members. If the best of them has a higher score, a copy of it with
perturbed hyperparameters replaces the member. The score is the mean return of the evaluation episodes after a round.

    python examples/population.py --num-workers 2 --plot lineage.png

prints the env steps of all members, the seconds and the mean score of the last `--size` training rounds, every 200,000
env steps. The last lines have the statistics of the population and the hyperparameters of the best member.
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

from parenv import Population, Rollout, Stop, TorchPolicy
from parenv.population import Fitness, LogUniform, Member, Tournament, Uniform
from parenv.returns import gae


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(2_000_000, "Maximum number of env steps of all members together")
    stop_score: float = flag(500.0, "Score of a training round at which training stops")
    size: int = flag(32, "Number of members")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")
    num_envs: int = flag(8, "Number of environments of a member")
    rollout_length: int = flag(32, "Env steps per environment and rollout")
    every: int = flag(4_096, "Number of env steps per training round")
    tournament_size: int = flag(3, "Number of other members to compare with after a training round")
    episodes: int = flag(10, "Number of episodes that measure the fitness after a training round")
    lineage: str = flag("lineage.jsonl", "File for a line per training round and copy; --plot draws it", metavar="FILE")
    gamma: float = flag(0.99, "Discount factor")


class Agent(nn.Module):
    """Policy network and value network."""

    def __init__(self, obs_size: int, num_actions: int, hidden: int = 64) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(obs_size, hidden), nn.Tanh(), nn.Linear(hidden, num_actions))
        self.critic = nn.Sequential(nn.Linear(obs_size, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(obs).squeeze(-1)  # type: ignore[no-any-return]

    def act(self, obs: Tensor) -> Tensor:
        return Categorical(logits=self.actor(obs), validate_args=False).sample()

    def act_greedy(self, obs: Tensor) -> Tensor:
        return self.actor(obs).argmax(-1)  # type: ignore[no-any-return]


def make_population(args: Args, **overrides: Any) -> Population:
    with gym.make(args.env_id) as env:
        assert isinstance(env.observation_space, gym.spaces.Box)
        assert isinstance(env.action_space, gym.spaces.Discrete)
        sizes = env.observation_space.shape[0], int(env.action_space.n)

    def make_member(hyperparameters: dict[str, float]) -> Member:
        agent = Agent(*sizes)
        policy = TorchPolicy(agent, "act", ("actions",), deterministic_method="act_greedy")
        return Member(policy, optimizer=torch.optim.Adam(agent.parameters(), lr=hyperparameters["lr"]))

    def learn(member: Member, rollout: Rollout) -> dict[str, Tensor]:
        """Update the member with a rollout `[T, num_envs, ...]`, and return metrics. Its worker calls this function."""
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

    arguments: dict[str, Any] = {
        "size": args.size,
        "hyperparameters": {"lr": LogUniform(1e-5, 1e-1), "entropy": Uniform(0.0, 0.05)},
        "evolve": Tournament(size=args.tournament_size, every=args.every, perturb=0.2),
        "fitness": Fitness(episodes=args.episodes),
        "num_workers": args.num_workers,
        "num_envs": args.num_envs,
        "rollout_length": args.rollout_length,
        "seed": args.seed,
        "lineage": args.lineage,
    }
    return Population(args.env_id, make_member, learn, **{**arguments, **overrides})


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
