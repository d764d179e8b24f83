"""Train recurrent PPO on CartPole-v1 without velocities with parallel workers.

The policy is a GRU (Cho et al., 2014, arXiv:1406.1078), because a single observation does not show the velocities. Its
recurrent state is the policy's carry. Workers pass the carry from step to step and reset it at the start of each
episode. A rollout contains the carry before its first step. The PPO update (Schulman et al., 2017, arXiv:1707.06347)
unrolls the GRU from that carry over the whole rollout. Training stops when the mean return of the last 100 episodes
reaches `--stop-return`.

    python examples/recurrent_ppo.py
    python examples/recurrent_ppo.py --no-masked

The second command shows the velocities, for comparison. Both print the env steps, the seconds and the mean return of
the last 100 episodes, every 10,000 env steps and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from gymnasium.wrappers import TransformObservation
from script import CommonArgs, Curve, flag, parse, save_results
from torch import Tensor, nn
from torch.distributions import Categorical

from parenv import AsyncWorkerPool, Rollout, Stop, TorchPolicy
from parenv.returns import gae

POSITIONS = [0, 2]
"""Indices of the cart position and the pole angle in the observation."""


@dataclass
class Args(CommonArgs):
    masked: bool = flag(True, "Hide the velocities")
    total_env_steps: int = flag(300_000, "Maximum number of env steps")
    stop_return: float = flag(475.0, "Mean return of the last 100 episodes at which training stops")
    num_envs: int = flag(16, "Number of environments")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")
    rollout_length: int = flag(
        32, "Env steps per environment and rollout; also the length of backpropagation through time"
    )
    learning_rate: float = flag(1e-3, "Initial learning rate, annealed linearly to 0 at total_env_steps")
    gamma: float = flag(0.98, "Discount factor")
    gae_lambda: float = flag(0.8, "Lambda of generalized advantage estimation (GAE)")
    epochs: int = flag(10, "Number of passes over each rollout")
    minibatch_envs: int = flag(4, "Number of environments per minibatch, each with its whole rollout")
    clip_range: float = flag(0.2, "Clipping range of the probability ratio")
    entropy_coef: float = flag(0.0, "Coefficient of the entropy bonus")
    value_coef: float = flag(0.5, "Coefficient of the value loss")
    max_grad_norm: float = flag(0.5, "Maximum norm of the gradient")


def env_maker(args: Args) -> Callable[[], Any]:
    env_id, masked = args.env_id, args.masked

    def make() -> Any:
        env = gym.make(env_id)
        if not masked:
            return env
        limits = env.observation_space.high[POSITIONS] / 2  # an episode terminates at half of the bounds of the space
        space = gym.spaces.Box(-2.0, 2.0, (len(POSITIONS),))
        return TransformObservation(env, lambda observation: observation[POSITIONS] / limits, space)

    return make


class Agent(nn.Module):
    """Recurrent network (GRU) that the policy and the value function share."""

    def __init__(self, obs_size: int, num_actions: int, hidden: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(obs_size, hidden), nn.Tanh())
        self.gru = nn.GRUCell(hidden, hidden)
        self.actor, self.critic = nn.Linear(hidden, num_actions), nn.Linear(hidden, 1)
        for layer, gain in ((self.encoder[0], 2**0.5), (self.actor, 0.01), (self.critic, 1.0)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def initial_carry(self, batch: int) -> Tensor:
        """Return the recurrent state at the start of an episode."""
        return torch.zeros(batch, self.gru.hidden_size)

    def policy_and_value(self, hidden: Tensor) -> tuple[Categorical, Tensor]:
        return Categorical(logits=self.actor(hidden), validate_args=False), self.critic(hidden).squeeze(-1)

    def act(self, obs: Tensor, carry: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        hidden = self.gru(self.encoder(obs), carry)
        policy, value = self.policy_and_value(hidden)
        actions = policy.sample()
        return actions, policy.log_prob(actions), value, hidden, hidden  # once as an extra, once as the next carry

    def unroll(self, obs: Tensor, carry: Tensor, ends: Tensor) -> tuple[Categorical, Tensor]:
        """Return policies and values of sequences `[T, B, ...]`. Reset the recurrent state after `ends`."""
        hidden_states = []
        for encoded, ended in zip(self.encoder(obs), ends, strict=True):
            hidden_states.append(self.gru(encoded, carry))
            carry = hidden_states[-1] * ~ended[:, None]
        return self.policy_and_value(torch.stack(hidden_states))


def make_agent(args: Args) -> Agent:
    with env_maker(args)() as env:
        return Agent(env.observation_space.shape[0], int(env.action_space.n))


def update(agent: Agent, optimizer: torch.optim.Optimizer, args: Args, env_steps: int, rollout: Rollout) -> None:
    """Update the agent with one rollout. A minibatch has all steps of some environments."""
    for group in optimizer.param_groups:
        group["lr"] = args.learning_rate * max(0.0, 1.0 - env_steps / args.total_env_steps)
    names = ("log_prob", "advantages", "returns")
    batch = [rollout.observations, rollout.actions, rollout.terminated | rollout.truncated]
    batch += [rollout.extras[name] for name in names]
    for _ in range(args.epochs):
        for columns in torch.randperm(batch[0].shape[1]).split(args.minibatch_envs):
            obs, actions, ends, log_probs, advantages, returns = (x[:, columns] for x in batch)
            policy, value = agent.unroll(obs, rollout.initial_carry[columns], ends)
            ratio = (policy.log_prob(actions) - log_probs).exp()
            clipped = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
            value_loss = (returns - value).square().mean()
            loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    def targets(policy: TorchPolicy, rollout: Rollout) -> dict[str, object]:  # called on the workers
        agent = policy.module
        # The value of a true next observation needs one more step of the GRU from the hidden state of each step.
        next_obs = torch.as_tensor(rollout.next_observations())
        hidden = torch.as_tensor(rollout.extras["hidden"])
        next_hidden = agent.gru(agent.encoder(next_obs.flatten(0, 1)), hidden.flatten(0, 1))
        next_values = agent.policy_and_value(next_hidden)[1].reshape(hidden.shape[:2])
        steps = (rollout.rewards, rollout.extras["value"], next_values, rollout.terminated, rollout.truncated)
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda)
        return {"advantages": advantages, "returns": returns}

    policy = TorchPolicy(agent, "act", ("actions", "log_prob", "value", "hidden", "carry"))
    sizes = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    return AsyncWorkerPool(env_maker(args), policy, mode="sync", seed=args.seed, postprocess=targets, **sizes)


def main(argv: Sequence[str] | None = None) -> Curve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    curve = Curve()

    agent = make_agent(args)
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
