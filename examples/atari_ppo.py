"""PPO on Atari's Pong from pixels, with parallel workers. `pip install "parenv[bench]"` has the emulator.

Proximal Policy Optimization (Schulman et al., 2017) with the network of Mnih et al. (2015) on four grey frames of
84 x 84 pixels, and the usual preprocessing (Machado et al., 2018). Workers write pixels to shared memory, and the
learner reads them from it. Rollouts contain bytes, and only the network converts them to floats. Pong takes some
million env steps: hours on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from script import CommonArgs, Curve, flag, keep, parse
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, Rollout, Stop, TorchPolicy
from parenv.returns import gae

try:
    import ale_py
except ImportError:
    raise SystemExit('atari_ppo.py needs the Arcade Learning Environment: pip install "parenv[bench]"') from None


@dataclass
class Args(CommonArgs):
    env_id: str = flag("ALE/Pong-v5", "any of ALE")
    total_env_steps: int = flag(5_000_000, "give up after so many env steps, of four frames each")
    stop_return: float = flag(18.0, "mean return of the last 100 episodes that ends the training")
    num_envs: int = flag(8, "environments")
    num_workers: int = flag(2, "worker processes; 0: everything in one")
    rollout_length: int = flag(128, "steps per environment between two updates")
    learning_rate: float = flag(2.5e-4, "of the optimizer at the start; annealed to 0 at total_env_steps")
    gamma: float = flag(0.99, "discount of a step")
    gae_lambda: float = flag(0.95, "of the generalized advantage estimation")
    epochs: int = flag(4, "passes over each rollout")
    minibatch_size: int = flag(256, "samples of a gradient step")
    clip_range: float = flag(0.1, "of the ratio of probabilities")
    entropy_coef: float = flag(0.01, "weight of the entropy in the loss")
    value_coef: float = flag(0.5, "weight of the value loss")
    max_grad_norm: float = flag(0.5, "to which gradients are clipped")


def env_maker(env_id: str) -> Callable[[], Any]:
    def make() -> Any:
        gym.register_envs(ale_py)
        env = gym.make(env_id, frameskip=1)  # The preprocessing skips frames instead.
        return FrameStackObservation(AtariPreprocessing(env), 4)

    return make


def layer(made: Any, gain: float = 2**0.5) -> Any:
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    """Convolutions, on which policy and value look."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            layer(nn.Conv2d(4, 32, 8, 4)), nn.ReLU(),
            layer(nn.Conv2d(32, 64, 4, 2)), nn.ReLU(),
            layer(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(),
            nn.Flatten(), layer(nn.Linear(3136, 512)), nn.ReLU(),
        )  # fmt: skip
        self.actor = layer(nn.Linear(512, num_actions), gain=0.01)
        self.critic = layer(nn.Linear(512, 1), gain=1.0)

    def get_value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.critic(self.body(obs.float() / 255.0)).squeeze(-1)
        return value

    def get_action_and_value(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        seen = self.body(obs.float() / 255.0)
        policy = Categorical(logits=self.actor(seen), validate_args=False)
        if action is None:
            action = policy.sample()
        return action, policy.log_prob(action), policy.entropy(), self.critic(seen).squeeze(-1)


def make_agent(env_id: str) -> Agent:
    with env_maker(env_id)() as env:
        return Agent(int(env.action_space.n))


def update(agent: Agent, optimizer: torch.optim.Optimizer, args: Args, env_steps: int, rollout: Rollout) -> None:
    """Improve the agent on one rollout, of fields of shape [T, num_envs, ...]."""
    for group in optimizer.param_groups:
        group["lr"] = args.learning_rate * max(0.0, 1.0 - env_steps / args.total_env_steps)
    extras = [rollout.extras[name] for name in ("log_prob", "advantages", "returns")]
    batch = [x.flatten(0, 1) for x in (rollout.observations, rollout.actions, *extras)]
    for _ in range(args.epochs):
        for rows in torch.randperm(len(batch[0])).split(args.minibatch_size):
            obs, actions, log_probs, advantages, returns = (x[rows] for x in batch)
            _, log_prob, entropy, value = agent.get_action_and_value(obs, actions)
            ratio = (log_prob - log_probs).exp()
            clipped = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
            weight = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            policy_loss = -torch.min(weight * ratio, weight * clipped).mean()
            value_loss = (returns - value).square().mean()
            loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    def process(policy: TorchPolicy, rollout: Rollout) -> dict[str, object]:
        next_values = rollout.next_values(rollout.extras["value"], policy.module.get_value)
        steps = (rollout.rewards, rollout.extras["value"], next_values, rollout.terminated, rollout.truncated)
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda)
        return {"advantages": advantages, "returns": returns}

    size = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    make = env_maker(args.env_id)
    return AsyncWorkerPool(make, TorchPolicy(agent), mode="sync", seed=args.seed, postprocess=process, **size)


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
            update(agent, optimizer, args, env_steps, rollout.to("cpu"))
            pool.publish(agent)
            curve.add(env_steps, rollout.episodes.returns.tolist())

    curve.print_last()
    keep(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
