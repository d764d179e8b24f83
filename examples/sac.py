"""Off-policy continuous control with parallel workers: SAC, or with `--algorithm` DDPG or TD3 instead.

Soft actor-critic with a learned temperature (Haarnoja et al., 2018, arXiv:1812.05905), deep deterministic policy
gradient (Lillicrap et al., 2016, arXiv:1509.02971) and its twin delayed successor (Fujimoto et al., 2018,
arXiv:1802.09477). Workers act and the learner learns without waiting for each other. A limiter keeps the number of
samples per transition near `--samples-per-insert`, so the result does not depend on which side is faster. The replay
buffer is Stable-Baselines3's: `pip install parenv[sb3]`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import RescaleAction
from script import CommonArgs, Curve, flag, keep, parse
from torch import Tensor, nn

from parenv import AsyncWorkerPool, Stop, TorchPolicy
from parenv.learning import Ensemble, RateLimiter, pipeline

try:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.type_aliases import ReplayBufferSamples
except ImportError:
    raise SystemExit('sac.py has its replay buffer from Stable-Baselines3: pip install "parenv[sb3]"') from None


@dataclass
class Args(CommonArgs):
    algorithm: str = flag("sac", "what learns", choices=("sac", "ddpg", "td3"))
    env_id: str = flag("Pendulum-v1", "any with vectors of numbers for observations and actions")
    total_env_steps: int = flag(20_000, "give up after so many env steps")
    num_envs: int = flag(4, "a multiple of num_workers, so that all rollouts are of one size")
    num_workers: int = flag(2, "worker processes; 0: everything in one")
    rollout_length: int = flag(8, "steps per environment in a rollout")
    samples_per_insert: float = flag(64.0, "with batch_size 128: a gradient step every other env step")
    learning_starts: int = flag(1_000, "env steps before the first gradient step, taken at random")
    error_buffer: float = flag(8_192.0, "samples that may be missing or too many")
    batch_size: int = flag(128, "samples of a gradient step")
    buffer_size: int = flag(100_000, "transitions that the replay buffer holds")
    publish_every: int = flag(10, "gradient steps")
    learning_rate: float = flag(1e-3, "of the optimizer")
    gamma: float = flag(0.99, "discount of a step")
    target_rate: float = flag(0.005, "how far the target networks move at a time")
    noise: float = flag(0.1, "ddpg, td3: standard deviation of what is added to actions in [-1, 1]")
    target_noise: float = flag(0.2, "td3: the same for the actions of the target")
    evaluation_episodes: int = flag(20, "after the training, without exploration")


class SamplingCurve(Curve):
    """The learning curve, with the samples per transition."""

    def __init__(self, limiter: RateLimiter) -> None:
        super().__init__(print_every=2_000, window=20)
        self.losses: list[float] = []  # of the critics, one for each gradient step
        self.evaluated = float("nan")  # mean return of the evaluation
        self.limiter = limiter

    def print_last(self) -> None:
        steps, seconds, mean = self.points[-1]
        ratio = self.limiter.ratio
        print(f"{steps:8d} steps  {seconds:6.1f} s  {mean:8.1f} mean return  {ratio:6.1f} samples/insert", flush=True)


def make_env(env_id: str) -> gym.Env[Any, Any]:
    one = np.float32(1.0)  # a plain 1.0 would make bounds of another dtype, and a warning
    return RescaleAction(gym.make(env_id), -one, one)


def mlp(inputs: int, outputs: int, hidden: int = 128) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    return nn.Sequential(*layers)


class Critic(nn.Module):
    """The value of an action, `[B, 1]`."""

    def __init__(self, obs_size: int, action_size: int) -> None:
        super().__init__()
        self.layers = mlp(obs_size + action_size, 1)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        value: Tensor = self.layers(torch.cat([obs.float(), actions], -1))
        return value


class Actor(nn.Module):
    """Actions in [-1, 1]: `act` explores, `best` does not. `at_random` is a buffer, so that it is published too."""

    at_random: Tensor

    def __init__(self, obs_size: int, outputs: int) -> None:
        super().__init__()
        self.layers = mlp(obs_size, outputs)
        self.register_buffer("at_random", torch.tensor(True))

    def act(self, obs: Tensor) -> Tensor:
        actions = self.explore(obs)
        return torch.where(self.at_random, torch.rand_like(actions) * 2 - 1, actions)

    def explore(self, obs: Tensor) -> Tensor:
        raise NotImplementedError


class GaussianActor(Actor):
    """SAC's: means and deviations of normal distributions, squashed by tanh."""

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions, and their log probabilities `[B, 1]`."""
        mean, log_std = self.layers(obs.float()).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5.0, 2.0).exp(), validate_args=False)
        raw = normal.rsample()
        # log(1 - tanh(raw)^2), in a form that does not round to log(0).
        squashed = 2.0 * (np.log(2.0) - raw - nn.functional.softplus(-2.0 * raw))
        return raw.tanh(), (normal.log_prob(raw) - squashed).sum(-1, keepdim=True)

    def explore(self, obs: Tensor) -> Tensor:
        return self.sample(obs)[0]

    def best(self, obs: Tensor) -> Tensor:
        mean: Tensor = self.layers(obs.float()).chunk(2, -1)[0]
        return mean.tanh()


class DeterministicActor(Actor):
    """The actor of DDPG and TD3: one action, with noise to explore."""

    def __init__(self, obs_size: int, action_size: int, noise: float) -> None:
        super().__init__(obs_size, action_size)
        self.noise = noise

    def explore(self, obs: Tensor) -> Tensor:
        actions = self.best(obs)
        return (actions + self.noise * torch.randn_like(actions)).clamp(-1.0, 1.0)

    def best(self, obs: Tensor) -> Tensor:
        actions: Tensor = self.layers(obs.float())
        return actions.tanh()


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Learner:
    """The common part of the algorithms: critics that learn from targets, an actor that learns from critics."""

    def __init__(self, args: Args, actor: Actor, critics: Sequence[Critic], actor_every: int = 1) -> None:
        self.args, self.actor, self.critics, self.actor_every = args, actor, Ensemble(critics), actor_every
        self.target_actor, self.target_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.critic_optimizer = self.adam(self.critics.parameters())
        self.actor_optimizer = self.adam(self.actor.parameters())
        self.updates = 0

    def adam(self, parameters: Any) -> torch.optim.Adam:
        return torch.optim.Adam(parameters, lr=self.args.learning_rate, fused=True)

    def next_values(self, obs: Tensor) -> Tensor:
        """Return the target value of observations, `[B, 1]`."""
        raise NotImplementedError

    def actor_loss(self, obs: Tensor) -> Tensor:
        """Return the loss of the actor."""
        raise NotImplementedError

    def update(self, batch: ReplayBufferSamples) -> float:
        """Learn from a batch; the critics' loss."""
        with torch.no_grad():
            following = self.next_values(batch.next_observations)
            wanted = batch.rewards + self.args.gamma * (1.0 - batch.dones) * following
        values = self.critics(batch.observations, batch.actions)
        loss = (values - wanted).square().mean((1, 2)).sum()
        step(self.critic_optimizer, loss)
        self.updates += 1
        if self.updates % self.actor_every == 0:
            # The critics get gradients here too, which their next step forgets.
            step(self.actor_optimizer, self.actor_loss(batch.observations))
            self.move_targets()
        return loss.item()

    @torch.no_grad()
    def move_targets(self) -> None:
        for slow, fast in ((self.target_critics, self.critics), (self.target_actor, self.actor)):
            for target, parameter in zip(slow.parameters(), fast.parameters(), strict=True):
                target.lerp_(parameter, self.args.target_rate)


class SAC(Learner):
    """Twin critics, values with the policy's entropy in them, and a temperature that keeps it near `-action_size`."""

    actor: GaussianActor

    def __init__(self, args: Args, obs_size: int, action_size: int) -> None:
        super().__init__(
            args, GaussianActor(obs_size, 2 * action_size), [Critic(obs_size, action_size) for _ in range(2)]
        )
        self.target_entropy = -float(action_size)
        self.log_temperature = torch.zeros(1, requires_grad=True)
        self.actor_optimizer.add_param_group({"params": [self.log_temperature]})

    def next_values(self, obs: Tensor) -> Tensor:
        actions, log_prob = self.actor.sample(obs)
        return self.target_critics.minimum(obs, actions) - self.log_temperature.exp() * log_prob

    def actor_loss(self, obs: Tensor) -> Tensor:
        actions, log_prob = self.actor.sample(obs)
        temperature = self.log_temperature.exp()
        lacking = self.target_entropy + log_prob.detach()
        loss = temperature.detach() * log_prob - self.critics.minimum(obs, actions) - temperature * lacking
        return loss.mean()


class DDPG(Learner):
    """One critic, and an actor that follows its gradient."""

    def __init__(self, args: Args, obs_size: int, action_size: int, num_critics: int = 1, actor_every: int = 1) -> None:
        actor = DeterministicActor(obs_size, action_size, args.noise)
        super().__init__(args, actor, [Critic(obs_size, action_size) for _ in range(num_critics)], actor_every)

    def next_values(self, obs: Tensor) -> Tensor:
        return self.target_critics.minimum(obs, self.target_actor.best(obs))

    def actor_loss(self, obs: Tensor) -> Tensor:
        loss: Tensor = -self.critics(obs, self.actor.best(obs))[0].mean()
        return loss


class TD3(DDPG):
    """DDPG with twin critics, noise on the target's actions, and an actor that moves half as often."""

    def __init__(self, args: Args, obs_size: int, action_size: int) -> None:
        super().__init__(args, obs_size, action_size, num_critics=2, actor_every=2)

    def next_values(self, obs: Tensor) -> Tensor:
        actions = self.target_actor.best(obs)
        noise = (self.args.target_noise * torch.randn_like(actions)).clamp(-0.5, 0.5)
        return self.target_critics.minimum(obs, (actions + noise).clamp(-1.0, 1.0))


ALGORITHMS = {"sac": SAC, "ddpg": DDPG, "td3": TD3}


def main(argv: Sequence[str] | None = None) -> SamplingCurve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)  # the buffer samples with it

    with make_env(args.env_id) as env:
        spaces = env.observation_space, env.action_space
    learner: Learner = ALGORITHMS[args.algorithm](args, *(gym.spaces.flatdim(space) for space in spaces))
    # A row of the buffer is a whole rollout, as if its transitions came from so many environments: one copy for all.
    transitions = args.rollout_length * args.num_envs // max(1, args.num_workers)
    buffer = ReplayBuffer(args.buffer_size, *spaces, "cpu", n_envs=transitions, handle_timeout_termination=False)
    limiter = RateLimiter(args.samples_per_insert, args.learning_starts, args.error_buffer)
    curve = SamplingCurve(limiter)

    policy = TorchPolicy(learner.actor, "act", ("actions",), deterministic_method="best")
    size = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    with AsyncWorkerPool(lambda: make_env(args.env_id), policy, mode="async", seed=args.seed, **size) as pool:
        for rollout in pipeline(pool, limiter, args.batch_size, Stop(args.total_env_steps)):
            if rollout is not None:
                new = rollout.transitions()
                # With `terminated` alone, a state in which an episode was only cut off keeps its value.
                buffer.add(new.observations, new.next_observations, new.actions, new.rewards, new.terminated, [])
                curve.add(limiter.inserts, rollout.episodes.returns.tolist())
                continue
            learner.actor.at_random.fill_(False)
            curve.losses.append(learner.update(buffer.sample(args.batch_size)))
            if learner.updates % args.publish_every == 0:
                pool.publish(learner.actor)
        pool.publish(learner.actor)
        curve.evaluated = float(pool.evaluate(args.evaluation_episodes).returns.mean())

    curve.print_last()
    keep(args, curve, learner.actor)
    print(f"{curve.evaluated:.1f} mean return of {args.evaluation_episodes} episodes without exploration")
    return curve


if __name__ == "__main__":
    main()
