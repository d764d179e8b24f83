"""Train PPO on Atari Pong from pixels with parallel workers.

Proximal Policy Optimization (Schulman et al., 2017, arXiv:1707.06347) with the convolutional network of DQN (Mnih et
al., 2015, Nature 518:529-533) on stacks of four grayscale frames of 84 x 84 pixels. The preprocessing is the standard
one (Machado et al., 2018, arXiv:1709.06009). Rollouts store pixels as bytes in shared memory, and the network converts
them to floats. Training stops when the mean return of the last 100 episodes reaches `--stop-return`. Pong takes several
million env steps, which are hours on two cores.

    pip install ale-py opencv-python-headless
    python examples/atari_ppo.py --num-workers 2

prints the env steps, the seconds and the mean return of the last 100 episodes, every 10,000 env steps and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from script import CommonArgs, Curve, flag, parse, save_results
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, Rollout, Stop, TorchPolicy
from parenv.returns import gae

try:
    import ale_py
except ImportError:
    raise SystemExit("atari_ppo.py needs ale-py and OpenCV: pip install ale-py opencv-python-headless") from None


@dataclass
class Args(CommonArgs):
    env_id: str = flag("ALE/Pong-v5", "Id of an Atari environment")
    total_env_steps: int = flag(5_000_000, "Maximum number of env steps, of four frames each")
    stop_return: float = flag(18.0, "Mean return of the last 100 episodes at which training stops")
    num_envs: int = flag(8, "Number of environments")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")
    rollout_length: int = flag(128, "Env steps per environment and rollout")
    learning_rate: float = flag(2.5e-4, "Initial learning rate, annealed linearly to 0 at total_env_steps")
    gamma: float = flag(0.99, "Discount factor")
    gae_lambda: float = flag(0.95, "Lambda of generalized advantage estimation (GAE)")
    epochs: int = flag(4, "Number of passes over each rollout")
    minibatch_size: int = flag(256, "Number of transitions per minibatch")
    clip_range: float = flag(0.1, "Clipping range of the probability ratio")
    entropy_coef: float = flag(0.01, "Coefficient of the entropy bonus")
    value_coef: float = flag(0.5, "Coefficient of the value loss")
    max_grad_norm: float = flag(0.5, "Maximum norm of the gradient")


def env_maker(env_id: str) -> Callable[[], Any]:
    def make() -> Any:
        gym.register_envs(ale_py)  # in each process that makes environments
        env = gym.make(env_id, frameskip=1)  # AtariPreprocessing skips frames instead.
        return FrameStackObservation(AtariPreprocessing(env), 4)

    return make


def initialized(layer: Any, gain: float = 2**0.5) -> Any:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Convolutional network that the policy and the value function share."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            initialized(nn.Conv2d(4, 32, 8, 4)), nn.ReLU(),
            initialized(nn.Conv2d(32, 64, 4, 2)), nn.ReLU(),
            initialized(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(),
            nn.Flatten(), initialized(nn.Linear(3136, 512)), nn.ReLU(),
        )  # fmt: skip
        self.actor = initialized(nn.Linear(512, num_actions), gain=0.01)
        self.critic = initialized(nn.Linear(512, 1), gain=1.0)

    def get_value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.critic(self.features(obs.float() / 255.0)).squeeze(-1)
        return value

    def get_action_and_value(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        features = self.features(obs.float() / 255.0)
        policy = Categorical(logits=self.actor(features), validate_args=False)
        if action is None:
            action = policy.sample()
        return action, policy.log_prob(action), policy.entropy(), self.critic(features).squeeze(-1)


def make_agent(env_id: str) -> Agent:
    with env_maker(env_id)() as env:
        return Agent(int(env.action_space.n))


def update(agent: Agent, optimizer: torch.optim.Optimizer, args: Args, env_steps: int, rollout: Rollout) -> None:
    """Update the agent with one rollout of fields `[T, num_envs, ...]`."""
    for group in optimizer.param_groups:
        group["lr"] = args.learning_rate * max(0.0, 1.0 - env_steps / args.total_env_steps)
    extras = [rollout.extras[name] for name in ("log_prob", "advantages", "returns")]
    batch = [x.flatten(0, 1) for x in (rollout.observations, rollout.actions, *extras)]
    for _ in range(args.epochs):
        for indices in torch.randperm(len(batch[0])).split(args.minibatch_size):
            obs, actions, log_probs, advantages, returns = (x[indices] for x in batch)
            _, log_prob, entropy, value = agent.get_action_and_value(obs, actions)
            ratio = (log_prob - log_probs).exp()
            clipped = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
            value_loss = (returns - value).square().mean()
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
    make = env_maker(args.env_id)
    return AsyncWorkerPool(make, TorchPolicy(agent), mode="sync", seed=args.seed, postprocess=targets, **sizes)


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
    save_results(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
