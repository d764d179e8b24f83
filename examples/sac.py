"""Train SAC, DDPG or TD3 on Pendulum-v1 with parallel workers.

Soft actor-critic with a learned temperature (Haarnoja et al., 2018, arXiv:1812.05905), deep deterministic policy
gradient (Lillicrap et al., 2016, arXiv:1509.02971), or twin delayed DDPG (Fujimoto et al., 2018, arXiv:1802.09477).
Workers collect and the learner updates without waiting for each other. A rate limiter keeps the number of samples per
inserted transition near `--samples-per-insert`, so that the result does not depend on their relative speed.

    pip install ".[sb3]"
    python examples/sac.py --algorithm sac
    python examples/sac.py --algorithm td3

print the env steps, the seconds, the mean return of the last 20 episodes and the samples per insert, every 2,000 env
steps and at the end. The last line has the mean return of the evaluation episodes. The replay buffer comes from
Stable-Baselines3.
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
from script import CommonArgs, Curve, flag, parse, save_results
from torch import Tensor, nn

from parenv import AsyncWorkerPool, Stop, TorchPolicy
from parenv.learning import Ensemble, RateLimiter, pipeline

try:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.type_aliases import ReplayBufferSamples
except ImportError:
    raise SystemExit('sac.py needs the replay buffer of Stable-Baselines3: pip install ".[sb3]"') from None


@dataclass
class Args(CommonArgs):
    algorithm: str = flag("sac", "Algorithm", choices=("sac", "ddpg", "td3"))
    env_id: str = flag("Pendulum-v1", "Id of an environment with one-dimensional Box observations and actions")
    total_env_steps: int = flag(20_000, "Maximum number of env steps")
    num_envs: int = flag(4, "Number of environments, a multiple of num_workers so that all rollouts have one size")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")
    rollout_length: int = flag(8, "Env steps per environment and rollout")
    samples_per_insert: float = flag(
        64.0, "Samples per transition; 64 with a batch size of 128: a gradient step every 2 env steps"
    )
    learning_starts: int = flag(1_000, "Env steps with random actions before the first gradient step")
    error_buffer: float = flag(8_192.0, "Largest deviation from samples_per_insert, in samples")
    batch_size: int = flag(128, "Number of transitions per batch")
    buffer_size: int = flag(100_000, "Capacity of the replay buffer in transitions")
    publish_every: int = flag(10, "Number of gradient steps between two publishes")
    learning_rate: float = flag(1e-3, "Learning rate")
    gamma: float = flag(0.99, "Discount factor")
    tau: float = flag(0.005, "Polyak averaging coefficient of the target networks")
    exploration_noise: float = flag(0.1, "Standard deviation of the exploration noise (DDPG, TD3)")
    target_policy_noise: float = flag(0.2, "Standard deviation of the target policy smoothing noise (TD3)")
    evaluation_episodes: int = flag(20, "Number of evaluation episodes after the training, without exploration")


class SamplingCurve(Curve):
    """Learning curve with the samples per insert."""

    def __init__(self, limiter: RateLimiter) -> None:
        super().__init__(print_every=2_000, window=20)
        self.losses: list[float] = []  # loss of the critics at each gradient step
        self.evaluated = float("nan")  # mean return of the evaluation
        self.limiter = limiter

    def print_last(self) -> None:
        steps, seconds, mean = self.points[-1]
        ratio = self.limiter.ratio
        print(
            f"{steps:8d} env steps  {seconds:6.1f} s  {mean:8.1f} mean return  {ratio:6.1f} samples/insert", flush=True
        )


def make_env(env_id: str) -> gym.Env[Any, Any]:
    bound = np.float32(1.0)  # the dtype of the action space; a Python float makes RescaleAction warn
    return RescaleAction(gym.make(env_id), -bound, bound)


def mlp(inputs: int, outputs: int, hidden: int = 128) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    return nn.Sequential(*layers)


class Critic(nn.Module):
    """Q-function with values `[B, 1]`."""

    def __init__(self, obs_size: int, action_size: int) -> None:
        super().__init__()
        self.layers = mlp(obs_size + action_size, 1)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        value: Tensor = self.layers(torch.cat([obs.float(), actions], -1))
        return value


class Actor(nn.Module):
    """Policy with actions in [-1, 1]. `warmup` selects random actions. It is a buffer, so that it is published."""

    warmup: Tensor

    def __init__(self, obs_size: int, outputs: int) -> None:
        super().__init__()
        self.layers = mlp(obs_size, outputs)
        self.register_buffer("warmup", torch.tensor(True))

    def act(self, obs: Tensor) -> Tensor:
        """Return actions for the workers."""
        actions = self.explore(obs)
        return torch.where(self.warmup, torch.rand_like(actions) * 2 - 1, actions)

    def explore(self, obs: Tensor) -> Tensor:
        """Return actions with exploration."""
        raise NotImplementedError


class GaussianActor(Actor):
    """Actor of SAC: a normal distribution, squashed by tanh."""

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions and their log-probabilities `[B, 1]`."""
        mean, log_std = self.layers(obs.float()).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5.0, 2.0).exp(), validate_args=False)
        pre_tanh = normal.rsample()
        # log(1 - tanh(x)^2), the logarithm of the derivative of tanh, in a numerically stable form.
        correction = 2.0 * (np.log(2.0) - pre_tanh - nn.functional.softplus(-2.0 * pre_tanh))
        return pre_tanh.tanh(), (normal.log_prob(pre_tanh) - correction).sum(-1, keepdim=True)

    def explore(self, obs: Tensor) -> Tensor:
        return self.sample(obs)[0]

    def deterministic(self, obs: Tensor) -> Tensor:
        mean: Tensor = self.layers(obs.float()).chunk(2, -1)[0]
        return mean.tanh()


class DeterministicActor(Actor):
    """Actor of DDPG and TD3: a deterministic action, plus noise for exploration."""

    def __init__(self, obs_size: int, action_size: int, noise: float) -> None:
        super().__init__(obs_size, action_size)
        self.noise = noise

    def explore(self, obs: Tensor) -> Tensor:
        actions = self.deterministic(obs)
        return (actions + self.noise * torch.randn_like(actions)).clamp(-1.0, 1.0)

    def deterministic(self, obs: Tensor) -> Tensor:
        actions: Tensor = self.layers(obs.float())
        return actions.tanh()


def minimize(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one gradient step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Learner:
    """Base class of the algorithms: critics, an actor, their target networks, and the update."""

    def __init__(self, args: Args, actor: Actor, critics: Sequence[Critic], actor_every: int = 1) -> None:
        self.args, self.actor, self.critics, self.actor_every = args, actor, Ensemble(critics), actor_every
        self.target_actor, self.target_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.critic_optimizer = self.adam(self.critics.parameters())
        self.actor_optimizer = self.adam(self.actor.parameters())
        self.updates = 0

    def adam(self, parameters: Any) -> torch.optim.Adam:
        return torch.optim.Adam(parameters, lr=self.args.learning_rate, fused=True)

    def next_values(self, obs: Tensor) -> Tensor:
        """Return the values of next observations for the TD target, `[B, 1]`."""
        raise NotImplementedError

    def actor_loss(self, obs: Tensor) -> Tensor:
        """Return the loss of the actor."""
        raise NotImplementedError

    def update(self, batch: ReplayBufferSamples) -> float:
        """Update the networks with a batch. Return the loss of the critics."""
        with torch.no_grad():
            next_values = self.next_values(batch.next_observations)
            td_target = batch.rewards + self.args.gamma * (1.0 - batch.dones) * next_values
        values = self.critics(batch.observations, batch.actions)  # [num_critics, B, 1]
        loss = (values - td_target).square().mean((1, 2)).sum()
        minimize(self.critic_optimizer, loss)
        self.updates += 1
        if self.updates % self.actor_every == 0:
            # This also accumulates gradients in the critics. Their next zero_grad() clears them.
            minimize(self.actor_optimizer, self.actor_loss(batch.observations))
            self.update_targets()
        return loss.item()

    @torch.no_grad()
    def update_targets(self) -> None:
        """Move the target networks towards the networks by Polyak averaging."""
        for target, network in ((self.target_critics, self.critics), (self.target_actor, self.actor)):
            for target_param, param in zip(target.parameters(), network.parameters(), strict=True):
                target_param.lerp_(param, self.args.tau)


class SAC(Learner):
    """Soft actor-critic: twin critics, and a learned temperature with a target entropy of `-action_size`."""

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
        entropy_deficit = self.target_entropy + log_prob.detach()  # raises the temperature if positive
        loss = temperature.detach() * log_prob - self.critics.minimum(obs, actions) - temperature * entropy_deficit
        return loss.mean()


class DDPG(Learner):
    """Deep deterministic policy gradient: one critic, and an actor that maximizes its value."""

    def __init__(self, args: Args, obs_size: int, action_size: int, num_critics: int = 1, actor_every: int = 1) -> None:
        actor = DeterministicActor(obs_size, action_size, args.exploration_noise)
        super().__init__(args, actor, [Critic(obs_size, action_size) for _ in range(num_critics)], actor_every)

    def next_values(self, obs: Tensor) -> Tensor:
        return self.target_critics.minimum(obs, self.target_actor.deterministic(obs))

    def actor_loss(self, obs: Tensor) -> Tensor:
        loss: Tensor = -self.critics(obs, self.actor.deterministic(obs))[0].mean()
        return loss


class TD3(DDPG):
    """Twin delayed DDPG: twin critics, target policy smoothing, and delayed updates of actor and targets."""

    def __init__(self, args: Args, obs_size: int, action_size: int) -> None:
        super().__init__(args, obs_size, action_size, num_critics=2, actor_every=2)

    def next_values(self, obs: Tensor) -> Tensor:
        actions = self.target_actor.deterministic(obs)
        noise = (self.args.target_policy_noise * torch.randn_like(actions)).clamp(-0.5, 0.5)
        return self.target_critics.minimum(obs, (actions + noise).clamp(-1.0, 1.0))


ALGORITHMS = {"sac": SAC, "ddpg": DDPG, "td3": TD3}


def main(argv: Sequence[str] | None = None) -> SamplingCurve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)  # the replay buffer samples with NumPy's global generator

    with make_env(args.env_id) as env:
        spaces = env.observation_space, env.action_space
    learner: Learner = ALGORITHMS[args.algorithm](args, *(gym.spaces.flatdim(space) for space in spaces))
    # Pass a whole rollout to the buffer as one step of `transitions` environments, so that one add() stores all.
    transitions = args.rollout_length * args.num_envs // max(1, args.num_workers)
    buffer = ReplayBuffer(args.buffer_size, *spaces, "cpu", n_envs=transitions, handle_timeout_termination=False)
    limiter = RateLimiter(args.samples_per_insert, args.learning_starts, args.error_buffer)
    curve = SamplingCurve(limiter)

    policy = TorchPolicy(learner.actor, "act", ("actions",), deterministic_method="deterministic")
    sizes = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    with AsyncWorkerPool(lambda: make_env(args.env_id), policy, mode="async", seed=args.seed, **sizes) as pool:
        for rollout in pipeline(pool, limiter, args.batch_size, Stop(args.total_env_steps)):
            if rollout is not None:  # insert this rollout now; None: sample a batch now
                new = rollout.transitions()
                # Pass `terminated` without `truncated`, so that truncated episodes bootstrap.
                buffer.add(new.observations, new.next_observations, new.actions, new.rewards, new.terminated, [])
                curve.add(limiter.inserts, rollout.episodes.returns.tolist())
                continue
            learner.actor.warmup.fill_(False)
            curve.losses.append(learner.update(buffer.sample(args.batch_size)))
            if learner.updates % args.publish_every == 0:
                pool.publish(learner.actor)
        pool.publish(learner.actor)
        curve.evaluated = float(pool.evaluate(args.evaluation_episodes).returns.mean())

    curve.print_last()
    save_results(args, curve, learner.actor)
    print(f"mean return of {args.evaluation_episodes} evaluation episodes: {curve.evaluated:.1f}")
    return curve


if __name__ == "__main__":
    main()
