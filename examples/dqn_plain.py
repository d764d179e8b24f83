"""Double DQN on CartPole-v1 in one process, with Gymnasium and PyTorch only.

Deep Q-learning (Mnih et al., 2015) with the double estimator (van Hasselt et al., 2016) and a
slowly moving target network. Short rollouts of an epsilon-greedy policy fill a replay buffer.
After each rollout the Q-network takes some gradient steps on samples from the buffer. Training
ends when the mean return of the last 100 episodes reaches `--stop-return`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from script import CommonArgs, Curve, flag, keep, parse
from torch import Tensor, nn


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(250_000, "give up after so many env steps")
    stop_return: float = flag(475.0, "mean return of the last 100 episodes that ends the training")
    num_envs: int = flag(8, "environments")
    rollout_length: int = flag(16, "steps per environment between two rounds of gradient steps")
    gradient_steps: int = flag(16, "in each round")
    learning_starts: int = flag(2_000, "env steps before the first round")
    learning_rate: float = flag(5e-4, "of the optimizer at the start; annealed to 0 at total_env_steps")
    gamma: float = flag(0.99, "discount of a step")
    batch_size: int = flag(128, "samples of a gradient step")
    buffer_size: int = flag(100_000, "transitions that the replay buffer holds")
    target_rate: float = flag(0.01, "how far the target network moves in each gradient step")
    epsilon_start: float = flag(1.0, "share of random actions at first")
    epsilon_end: float = flag(0.01, "share of random actions in the end")
    epsilon_steps: int = flag(20_000, "env steps from the first to the last epsilon")
    max_grad_norm: float = flag(10.0, "to which gradients are clipped")


class QNetwork(nn.Module):
    """Action values. `epsilon` is a buffer, so that it goes wherever the weights go."""

    epsilon: Tensor

    def __init__(self, obs_size: int, num_actions: int, hidden: int = 256) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(obs_size, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_actions),
        )
        self.register_buffer("epsilon", torch.tensor(1.0))

    def forward(self, obs: Tensor) -> Tensor:
        values: Tensor = self.layers(obs)
        return values

    def act(self, obs: Tensor) -> Tensor:
        """Epsilon-greedy actions."""
        values = self(obs)
        explore = torch.rand(len(values)) < self.epsilon
        random_actions = torch.randint(values.shape[-1], (len(values),))
        return torch.where(explore, random_actions, values.argmax(-1))


def make_q_network(env_id: str) -> QNetwork:
    with gym.make(env_id) as env:
        assert isinstance(env.observation_space, gym.spaces.Box)
        assert isinstance(env.action_space, gym.spaces.Discrete)
        return QNetwork(env.observation_space.shape[0], int(env.action_space.n))


class ReplayBuffer:
    """The last `size` transitions. Add them in blocks of any leading shape, sample a batch."""

    def __init__(self, size: int, obs_shape: tuple[int, ...], seed: int) -> None:
        self.obs = np.zeros((size, *obs_shape), np.float32)
        self.next_obs = np.zeros_like(self.obs)
        self.actions = np.zeros(size, np.int64)
        self.rewards = np.zeros(size, np.float32)
        self.terminated = np.zeros(size, np.float32)
        self.size, self.added = size, 0
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return min(self.added, self.size)

    def add(self, obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, terminated: Tensor) -> None:
        """`next_obs` must be what the action led to, also where the episode ended there."""
        count = actions.numel()
        rows = (self.added + np.arange(count)) % self.size
        self.obs[rows] = obs.reshape(count, *self.obs.shape[1:]).numpy()
        self.next_obs[rows] = next_obs.reshape(count, *self.obs.shape[1:]).numpy()
        self.actions[rows] = actions.reshape(count).numpy()
        self.rewards[rows] = rewards.reshape(count).numpy()
        self.terminated[rows] = terminated.reshape(count).numpy()
        self.added += count

    def sample(self, batch_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows = self.rng.integers(len(self), size=batch_size)
        return (
            torch.from_numpy(self.obs[rows]),
            torch.from_numpy(self.actions[rows]),
            torch.from_numpy(self.rewards[rows]),
            torch.from_numpy(self.next_obs[rows]),
            torch.from_numpy(self.terminated[rows]),
        )


def update(
    q_network: QNetwork,
    target: QNetwork,
    optimizer: torch.optim.Optimizer,
    buffer: ReplayBuffer,
    args: Args,
    env_steps: int,
) -> None:
    """Set epsilon for the next rollout, then take `args.gradient_steps` steps."""
    done = min(1.0, env_steps / args.epsilon_steps)
    q_network.epsilon.fill_(args.epsilon_start + done * (args.epsilon_end - args.epsilon_start))
    if env_steps < args.learning_starts:
        return
    for group in optimizer.param_groups:
        group["lr"] = args.learning_rate * max(0.0, 1.0 - env_steps / args.total_env_steps)
    for _ in range(args.gradient_steps):
        obs, actions, rewards, next_obs, terminated = buffer.sample(args.batch_size)
        with torch.no_grad():
            best = q_network(next_obs).argmax(-1, keepdim=True)
            next_value = target(next_obs).gather(-1, best).squeeze(-1)
            wanted = rewards + args.gamma * (1.0 - terminated) * next_value
        value = q_network(obs).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        loss = nn.functional.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(q_network.parameters(), args.max_grad_norm)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), q_network.parameters(), strict=True):
                slow.lerp_(fast, args.target_rate)


def main(argv: Sequence[str] | None = None) -> Curve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    curve = Curve()

    q_network = make_q_network(args.env_id)
    obs_shape = (q_network.layers[0].in_features,)
    target = copy.deepcopy(q_network)
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate, fused=True)
    buffer = ReplayBuffer(args.buffer_size, obs_shape, args.seed)

    envs = SyncVectorEnv(
        [lambda: gym.make(args.env_id) for _ in range(args.num_envs)],
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    block = (args.rollout_length, args.num_envs)
    observations, next_observations = torch.zeros(block + obs_shape), torch.zeros(block + obs_shape)
    actions = torch.zeros(block, dtype=torch.long)
    rewards, terminated = torch.zeros(block), torch.zeros(block, dtype=torch.bool)

    env_steps = 0
    running_returns = np.zeros(args.num_envs)
    obs = envs.reset(seed=args.seed)[0]
    while env_steps < args.total_env_steps and not curve.reached(args.stop_return):
        episode_returns: list[float] = []
        for t in range(args.rollout_length):
            observations[t] = torch.as_tensor(obs)
            with torch.no_grad():
                actions[t] = q_network.act(observations[t])
            obs, reward, term, trunc, infos = envs.step(actions[t].numpy())
            rewards[t] = torch.as_tensor(reward)
            terminated[t] = torch.as_tensor(term)

            # If an episode has ended, obs is already the first observation of the next episode.
            # The last observation of the old episode, to which the action led, is in infos.
            next_observations[t] = torch.as_tensor(obs)
            ended = term | trunc
            if ended.any():
                final_obs = np.stack(infos["final_obs"][ended])
                next_observations[t, ended] = torch.as_tensor(final_obs)

            running_returns += reward
            episode_returns.extend(running_returns[ended].tolist())
            running_returns[ended] = 0.0
            env_steps += args.num_envs

        buffer.add(observations, actions, rewards, next_observations, terminated)
        update(q_network, target, optimizer, buffer, args, env_steps)
        curve.add(env_steps, episode_returns)

    envs.close()
    curve.print_last()
    keep(args, curve, q_network)
    return curve


if __name__ == "__main__":
    main()
