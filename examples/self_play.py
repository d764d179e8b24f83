"""Train PPO by self-play on Connect Four, against a league of frozen versions of the policy.

A single policy learns, with PPO (Schulman et al., 2017, arXiv:1707.06347). In half of the games it plays against
itself. In the other half, its opponent is a random player or an earlier version of the policy, which `pool.freeze`
keeps. An agent that plays only against its newest version may forget how to beat earlier versions (see AlphaStar,
Vinyals et al., 2019, Nature 575:350-354). The scores at the end show whether it has.

    pip install ".[agents]"
    python examples/self_play.py --num-workers 2 --plot league.png

prints a line for each version that joins the league. The last lines have the Elo rating of each version, the mean score
of the newest version against it, and the result of `--games` evaluation games against the random player.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from script import CommonArgs, flag, parse
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, Stop, TorchPolicy
from parenv.learning import League
from parenv.returns import gae
from parenv.rollouts import AgentRollout, RolloutsByPolicy


@dataclass
class Args(CommonArgs):
    env_id: str = flag("connect_four", "Two-player board game of pettingzoo.classic, such as tictactoe")
    total_env_steps: int = flag(300_000, "Number of env steps, which are moves of either player")
    freeze_every: int = flag(25_000, "Env steps between two frozen versions that join the league")
    games: int = flag(100, "Number of evaluation games against the random player")
    num_envs: int = flag(64, "Number of environments")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")
    rollout_length: int = flag(16, "Turns per agent and rollout")
    learning_rate: float = flag(1e-3, "Learning rate")
    gamma: float = flag(0.99, "Discount factor per turn")
    gae_lambda: float = flag(0.95, "Lambda of generalized advantage estimation (GAE)")
    epochs: int = flag(4, "Number of passes over each rollout")
    minibatches: int = flag(4, "Number of minibatches per pass")
    clip_range: float = flag(0.2, "Clipping range of the probability ratio")
    entropy_coef: float = flag(0.02, "Coefficient of the entropy bonus")
    max_grad_norm: float = flag(0.5, "Maximum norm of the gradient")


class Agent(nn.Module):
    """Convolutional network that the policy and the value function share. It takes the board and the action mask."""

    def __init__(self, board: Sequence[int], num_actions: int, hidden: int = 128) -> None:
        super().__init__()
        height, width, planes = board
        kernel = min(4, height, width)  # the length of a winning line
        features = 64 * (height - kernel + 1) * (width - kernel + 1)
        layers = [nn.Conv2d(planes, 64, kernel), nn.ReLU(), nn.Flatten(), nn.Linear(features, hidden), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.logits, self.critic = nn.Linear(hidden, num_actions), nn.Linear(hidden, 1)

    def policy_and_value(self, obs: Any) -> tuple[Categorical, Tensor]:
        """Return the policy over legal actions, and the value. Boards are `[..., height, width, planes]`."""
        boards, legal = obs["observation"].float().movedim(-1, -3), obs["action_mask"]
        features = self.body(boards.flatten(0, -4)).unflatten(0, boards.shape[:-3])
        logits = self.logits(features).masked_fill(legal == 0, -1e9)
        return Categorical(logits=logits, validate_args=False), self.critic(features).squeeze(-1)

    def value(self, obs: Any) -> Tensor:
        return self.policy_and_value(obs)[1]

    def act(self, obs: Any) -> tuple[Tensor, Tensor]:
        policy, _ = self.policy_and_value(obs)
        actions = policy.sample()
        return actions, policy.log_prob(actions)

    def greedy(self, obs: Any) -> Tensor:
        return self.policy_and_value(obs)[0].probs.argmax(-1)


def act_randomly(obs: Any) -> Any:
    """Return a random legal action for each observation."""
    return (np.random.random(obs["action_mask"].shape) * obs["action_mask"]).argmax(-1)


def policy_of(agent_name: str, episode: Any) -> str:
    """Return the policy of an agent. The learning policy alternates between player 0 and 1; its opponent is drawn."""
    if agent_name.endswith(str((episode.env_id + episode.number) % 2)):
        return "agent"
    return League.draw(episode.settings["agent"]["opponents"], episode.generator)


def opponents(league: League) -> dict[str, float]:
    """Return the probability of each opponent: 0.5 for self-play, and 0.5 for all earlier players of the league."""
    past = league.opponents(league.players[-1], "uniform")
    return {"agent": 0.5, **{name: probability / 2 for name, probability in past.items()}}


def results(rollout: RolloutsByPolicy, league: League) -> list[tuple[str, str, float]]:
    """Return player, opponent and score (0 to 1) of all finished games, except games of the agent against itself.

    The newest version in the league gets the results of the learning policy, until the next version joins.
    """
    finished = [(name, rollout[name].episodes.returns.tolist()) for name in league.players if name in rollout]
    return [
        (league.players[-1], name, (1.0 - opponent_return) / 2)
        for name, returns in finished
        for opponent_return in returns
    ]


def update(agent: Agent, optimizer: torch.optim.Optimizer, args: Args, rows: AgentRollout) -> None:
    """Update the agent with its turns `[T, rows, ...]`. Only entries with `alive` are transitions."""
    with torch.no_grad():
        values = agent.value(rows.observations)
        steps = (rows.rewards, values, rows.next_values(values, agent.value), rows.terminated, rows.truncated)
        advantages, targets = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda, alive=rows.alive)
    fields = (rows.actions, rows.extras["log_prob"], advantages, targets)
    actions, log_probs, advantages, targets = (x[rows.alive] for x in fields)
    observations = {name: x[rows.alive] for name, x in rows.observations.items()}
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    for _ in range(args.epochs):
        for indices in torch.randperm(len(actions)).chunk(args.minibatches):
            policy, values = agent.policy_and_value({name: x[indices] for name, x in observations.items()})
            ratio = (policy.log_prob(actions[indices]) - log_probs[indices]).exp()
            clipped = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
            policy_loss = -torch.min(advantages[indices] * ratio, advantages[indices] * clipped).mean()
            value_loss = (values - targets[indices]).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss - args.entropy_coef * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def make_env(env_id: str) -> Any:
    from importlib import import_module

    return import_module(f"pettingzoo.classic.{env_id}.{env_id}").env()


def make_agent(env_id: str) -> Agent:
    env = make_env(env_id)
    agent_name = env.possible_agents[0]
    agent = Agent(env.observation_space(agent_name)["observation"].shape, int(env.action_space(agent_name).n))
    env.close()
    return agent


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    learner = TorchPolicy(agent, "act", ("actions", "log_prob"), deterministic_method="greedy")
    policies = {"agent": learner, "random": act_randomly}
    sizes = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    settings = {"opponents": {"agent": 0.5, "random": 0.5}}
    max_frozen, env_id = 2 + args.total_env_steps // args.freeze_every, args.env_id
    kwargs: dict[str, Any] = {
        "mode": "sync",
        "seed": args.seed,
        "settings": settings,
        "max_frozen": max_frozen,
        **sizes,
    }
    return AsyncWorkerPool(lambda: make_env(env_id), policies, policy_of=policy_of, **kwargs)


def print_ratings(league: League, joined: Sequence[int]) -> None:
    """Print the Elo ratings relative to the random player, and the mean scores of the newest player."""
    ratings, newest = league.elo(), league.payoff()[-1]
    for name, env_steps, score in zip(league.players, joined, newest, strict=True):
        rating = ratings[name] - ratings["random"]
        print(f"{name:>12} joined at {env_steps:7d} env steps, Elo {rating:5.0f}, newest player scores {score:.2f}")


def draw(path: str, league: League, joined: Sequence[int]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    curve, matrix = figure.subplots(1, 2)
    ratings = league.elo()
    curve.plot(joined[1:], [ratings[name] - ratings["random"] for name in league.players[1:]], marker="o")
    curve.set(xlabel="env steps", ylabel="Elo above the random player", title="Versions of the agent")
    curve.grid(alpha=0.3)
    image = matrix.imshow(league.payoff(), vmin=0.0, vmax=1.0, cmap="RdYlGn")
    matrix.set(xlabel="opponent, oldest first", ylabel="player, oldest first", title="Mean score")
    figure.colorbar(image, ax=matrix)
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> tuple[League, int]:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)

    agent = make_agent(args.env_id)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    with make_pool(args, agent) as pool:
        league, joined = League.of("random", pool.freeze("agent")), [0, 0]
        for rollout in pool.rollouts(Stop(args.total_env_steps)):
            rollouts = cast(RolloutsByPolicy, rollout)
            league = league.with_results(results(rollouts, league))
            update(agent, optimizer, args, rollouts["agent"].to("cpu"))
            env_steps = pool.statistics().env_steps
            if env_steps - joined[-1] >= args.freeze_every and env_steps < args.total_env_steps:
                league = league.with_players(pool.freeze("agent"))
                joined.append(env_steps)
                print(f"{env_steps:8d} env steps  {league.players[-1]} joins the league", flush=True)
            pool.publish({"agent": agent}, opponents=opponents(league))
        pool.publish({"agent": agent}, opponents={"random": 1.0})
        returns = cast(Any, pool.evaluate(args.games))["agent"].returns

    print_ratings(league, joined)
    won = int((returns > 0).sum())
    print(f"won {won}, drew {int((returns == 0).sum())} of {args.games} games against the random player")
    if args.plot:
        draw(args.plot, league, joined)
    if args.save:
        torch.save(agent.state_dict(), args.save)
    return league, won


if __name__ == "__main__":
    main()
