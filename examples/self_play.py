"""Connect Four against its own past: PPO, whose opponents a league of frozen versions of itself gives it.

One policy learns. Half of its games are against itself, the others against players of the league: a random one, and
frozen earlier versions of the policy (`pool.freeze`). A policy that plays only the newest opponent may forget how to
beat the first ones. The scores at the end show whether it has. Needs `pip install "parenv[agents]"`.
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

from parenv import AgentRollout, AsyncWorkerPool, RolloutsByPolicy, Stop, TorchPolicy
from parenv.learning import League
from parenv.returns import gae


@dataclass
class Args(CommonArgs):
    env_id: str = flag("connect_four", "a board game of pettingzoo.classic for two, such as tictactoe")
    total_env_steps: int = flag(300_000, "moves of both sides, in all games")
    freeze_every: int = flag(25_000, "env steps until another version joins the league")
    games: int = flag(100, "against the random player at the end")
    num_envs: int = flag(64, "games at once")
    num_workers: int = flag(2, "worker processes; 0: everything in one")
    rollout_length: int = flag(16, "turns of a player between two updates")
    learning_rate: float = flag(1e-3, "of the optimizer")
    gamma: float = flag(0.99, "discount of a turn")
    gae_lambda: float = flag(0.95, "of the generalized advantage estimation")
    epochs: int = flag(4, "passes over each rollout")
    minibatches: int = flag(4, "of each pass")
    clip_range: float = flag(0.2, "of the ratio of probabilities")
    entropy_coef: float = flag(0.02, "weight of the entropy in the loss")
    max_grad_norm: float = flag(0.5, "to which gradients are clipped")


class Agent(nn.Module):
    """Sees the board, `[..., height, width, 2]`, and which moves are legal."""

    def __init__(self, board: Sequence[int], num_actions: int, hidden: int = 128) -> None:
        super().__init__()
        height, width, planes = board
        kernel = min(4, height, width)  # As long as a line that wins.
        windows = 64 * (height - kernel + 1) * (width - kernel + 1)
        layers = [nn.Conv2d(planes, 64, kernel), nn.ReLU(), nn.Flatten(), nn.Linear(windows, hidden), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.logits, self.critic = nn.Linear(hidden, num_actions), nn.Linear(hidden, 1)

    def both(self, obs: Any) -> tuple[Categorical, Tensor]:
        """The policy, of legal moves only, and the value."""
        boards, legal = obs["observation"].float().movedim(-1, -3), obs["action_mask"]
        features = self.body(boards.flatten(0, -4)).unflatten(0, boards.shape[:-3])
        logits = self.logits(features).masked_fill(legal == 0, -1e9)
        return Categorical(logits=logits, validate_args=False), self.critic(features).squeeze(-1)

    def value(self, obs: Any) -> Tensor:
        return self.both(obs)[1]

    def act(self, obs: Any) -> tuple[Tensor, Tensor]:
        policy, _ = self.both(obs)
        actions = policy.sample()
        return actions, policy.log_prob(actions)

    def best(self, obs: Any) -> Tensor:
        return self.both(obs)[0].probs.argmax(-1)


def play_at_random(obs: Any) -> Any:
    """Some legal move."""
    return (np.random.random(obs["action_mask"].shape) * obs["action_mask"]).argmax(-1)


def player(seat: str, episode: Any) -> str:
    """The agent has one seat in every second game and the other one in the others; its opponent is drawn."""
    if seat.endswith(str((episode.env_id + episode.number) % 2)):
        return "agent"
    return League.draw(episode.settings["agent"]["opponents"], episode.generator)


def opponents(league: League) -> dict[str, float]:
    """Return the share of games per opponent: half against itself, half against all earlier versions."""
    past = league.opponents(league.players[-1], "uniform")
    return {"agent": 0.5, **{name: share / 2 for name, share in past.items()}}


def results(rollout: RolloutsByPolicy, league: League) -> list[tuple[str, str, float]]:
    """Return the games that have ended, except games against itself: player, opponent, and score from 0 to 1.

    Games of the agent count for the version that joined last, until another version joins.
    """
    met = [(name, rollout[name].episodes.returns.tolist()) for name in league.players if name in rollout]
    return [(league.players[-1], name, (1.0 - gained) / 2) for name, returns in met for gained in returns]


def update(agent: Agent, optimizer: torch.optim.Optimizer, args: Args, rows: AgentRollout) -> None:
    with torch.no_grad():
        values = agent.value(rows.observations)
        steps = (rows.rewards, values, rows.next_values(values, agent.value), rows.terminated, rows.truncated)
        advantages, targets = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda, alive=rows.alive)
    of_turns = (rows.actions, rows.extras["log_prob"], advantages, targets)
    actions, log_probs, advantages, targets = (x[rows.alive] for x in of_turns)
    observations = {name: x[rows.alive] for name, x in rows.observations.items()}
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    for _ in range(args.epochs):
        for part in torch.randperm(len(actions)).chunk(args.minibatches):
            policy, values = agent.both({name: x[part] for name, x in observations.items()})
            ratio = (policy.log_prob(actions[part]) - log_probs[part]).exp()
            clipped = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
            policy_loss = -torch.min(advantages[part] * ratio, advantages[part] * clipped).mean()
            value_loss = (values - targets[part]).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss - args.entropy_coef * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def make_env(env_id: str) -> Any:
    from importlib import import_module

    return import_module(f"pettingzoo.classic.{env_id}.{env_id}").env()


def make_agent(env_id: str) -> Agent:
    env = make_env(env_id)
    seat = env.possible_agents[0]
    agent = Agent(env.observation_space(seat)["observation"].shape, int(env.action_space(seat).n))
    env.close()
    return agent


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    learner = TorchPolicy(agent, "act", ("actions", "log_prob"), deterministic_method="best")
    policies = {"agent": learner, "random": play_at_random}
    size = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    settings = {"opponents": {"agent": 0.5, "random": 0.5}}
    max_frozen, env_id = 2 + args.total_env_steps // args.freeze_every, args.env_id
    how: dict[str, Any] = {"mode": "sync", "seed": args.seed, "settings": settings, "max_frozen": max_frozen, **size}
    return AsyncWorkerPool(lambda: make_env(env_id), policies, policy_of=player, **how)


def show(league: League, joined: Sequence[int]) -> None:
    """Every player's rating, where the random one has 0, and how the newest one plays against it."""
    ratings, newest = league.elo(), league.payoff()[-1]
    for name, env_steps, score in zip(league.players, joined, newest, strict=True):
        rating = ratings[name] - ratings["random"]
        print(f"{name:>12} of env step {env_steps:7d}: Elo {rating:5.0f}, {league.players[-1]} scores {score:.2f}")


def draw(path: str, league: League, joined: Sequence[int]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    curve, matrix = figure.subplots(1, 2)
    ratings = league.elo()
    curve.plot(joined[1:], [ratings[name] - ratings["random"] for name in league.players[1:]], marker="o")
    curve.set(xlabel="env steps", ylabel="Elo above the random player", title="Versions of the agent")
    curve.grid(alpha=0.3)
    picture = matrix.imshow(league.payoff(), vmin=0.0, vmax=1.0, cmap="RdYlGn")
    matrix.set(xlabel="opponent, the oldest first", ylabel="player, the oldest first", title="Mean score")
    figure.colorbar(picture, ax=matrix)
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
            played = cast(RolloutsByPolicy, rollout)
            league = league.with_results(results(played, league))
            update(agent, optimizer, args, played["agent"].to("cpu"))
            env_steps = pool.statistics().env_steps
            if env_steps - joined[-1] >= args.freeze_every and env_steps < args.total_env_steps:
                league = league.with_players(pool.freeze("agent"))
                joined.append(env_steps)
                print(f"{env_steps:8d} env steps  {league.players[-1]} joins", flush=True)
            pool.publish({"agent": agent}, opponents=opponents(league))
        pool.publish({"agent": agent}, opponents={"random": 1.0})
        found = cast(Any, pool.evaluate(args.games))["agent"].returns

    show(league, joined)
    won = int((found > 0).sum())
    print(f"won {won}, drew {int((found == 0).sum())} of {args.games} games against the random player")
    if args.plot:
        draw(args.plot, league, joined)
    if args.save:
        torch.save(agent.state_dict(), args.save)
    return league, won


if __name__ == "__main__":
    main()
