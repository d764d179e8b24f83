"""Train double DQN on CartPole-v1 in one process, with Gymnasium and PyTorch only.

Deep Q-learning (Mnih et al., 2015, Nature 518:529-533) with double Q-learning (van Hasselt et al., 2016,
arXiv:1509.06461) and a target network that follows the Q-network by Polyak averaging. An epsilon-greedy policy collects
short rollouts into a replay buffer. Several gradient steps on random batches follow each rollout. Training stops when
the mean return of the last 100 episodes reaches `--stop-return`.

The first program has no workers, the second one uses the workers of parenv:

    python examples/dqn_plain.py
    python examples/dqn.py --num-workers 2

Both print the env steps, the seconds and the mean return of the last 100 episodes, every 10,000 env steps and at the
end.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from script import CommonArgs, Curve, flag, parse, save_results
from torch import Tensor, nn


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(250_000, "Maximum number of env steps")
    stop_return: float = flag(475.0, "Mean return of the last 100 episodes at which training stops")
    num_envs: int = flag(8, "Number of environments")
    rollout_length: int = flag(16, "Env steps per environment and rollout")
    gradient_steps: int = flag(16, "Number of gradient steps after each rollout")
    learning_starts: int = flag(2_000, "Env steps before the first gradient step")
    learning_rate: float = flag(5e-4, "Initial learning rate, annealed linearly to 0 at total_env_steps")
    gamma: float = flag(0.99, "Discount factor")
    batch_size: int = flag(128, "Number of transitions per batch")
    buffer_size: int = flag(100_000, "Capacity of the replay buffer in transitions")
    tau: float = flag(0.01, "Polyak averaging coefficient of the target network")
    epsilon_start: float = flag(1.0, "Initial probability of a random action")
    epsilon_end: float = flag(0.01, "Final probability of a random action")
    epsilon_steps: int = flag(20_000, "Env steps over which epsilon decays linearly")
    max_grad_norm: float = flag(10.0, "Maximum norm of the gradient")


class QNetwork(nn.Module):
    """Q-network with an epsilon-greedy policy. `epsilon` is a buffer, so that it is copied with the weights."""

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
        """Return epsilon-greedy actions."""
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
    """Ring buffer of the last `size` transitions."""

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
        """Add transitions of any leading shape. At the end of an episode, `next_obs` must be its last observation."""
        count = actions.numel()
        rows = (self.added + np.arange(count)) % self.size
        self.obs[rows] = obs.reshape(count, *self.obs.shape[1:]).numpy()
        self.next_obs[rows] = next_obs.reshape(count, *self.obs.shape[1:]).numpy()
        self.actions[rows] = actions.reshape(count).numpy()
        self.rewards[rows] = rewards.reshape(count).numpy()
        self.terminated[rows] = terminated.reshape(count).numpy()
        self.added += count

    def sample(self, batch_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return `batch_size` random transitions, drawn with replacement."""
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
    """Set epsilon for the next rollout, then take `args.gradient_steps` gradient steps."""
    progress = min(1.0, env_steps / args.epsilon_steps)
    q_network.epsilon.fill_(args.epsilon_start + progress * (args.epsilon_end - args.epsilon_start))
    if env_steps < args.learning_starts:
        return
    for group in optimizer.param_groups:
        group["lr"] = args.learning_rate * max(0.0, 1.0 - env_steps / args.total_env_steps)
    for _ in range(args.gradient_steps):
        obs, actions, rewards, next_obs, terminated = buffer.sample(args.batch_size)
        with torch.no_grad():
            # Double Q-learning: the Q-network selects the next action, and the target network evaluates it.
            next_actions = q_network(next_obs).argmax(-1, keepdim=True)
            next_value = target(next_obs).gather(-1, next_actions).squeeze(-1)
            td_target = rewards + args.gamma * (1.0 - terminated) * next_value
        value = q_network(obs).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        loss = nn.functional.smooth_l1_loss(value, td_target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(q_network.parameters(), args.max_grad_norm)
        optimizer.step()
        with torch.no_grad():
            for target_param, param in zip(target.parameters(), q_network.parameters(), strict=True):
                target_param.lerp_(param, args.tau)


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
    shape = (args.rollout_length, args.num_envs)
    observations, next_observations = torch.zeros(shape + obs_shape), torch.zeros(shape + obs_shape)
    actions = torch.zeros(shape, dtype=torch.long)
    rewards, terminated = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)

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

            # With SAME_STEP autoreset, obs of an ended episode is the first observation of the next episode.
            # The last observation of the ended episode is in infos["final_obs"].
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
    save_results(args, curve, q_network)
    return curve


if __name__ == "__main__":
    main()
