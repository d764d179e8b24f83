"""Step 2: the same training in 16 environments at once, with batched inference and rollouts of shape [T, B].

    python examples/tutorial/step2_many_environments.py 100000

trains for 100,000 env steps and prints the mean return of the last 100 episodes.
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from parenv.returns import discounted_returns

TOTAL_ENV_STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
ROLLOUT_LENGTH, GAMMA, NUM_ENVS = 16, 0.98, 16


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def value(self, observations):
        return self.critic(observations).squeeze(-1)

    def get_action_and_value(self, observations, actions=None):
        distribution = torch.distributions.Categorical(logits=self.actor(observations))
        actions = distribution.sample() if actions is None else actions
        return actions, distribution.log_prob(actions), distribution.entropy(), self.value(observations)


def learn(agent, optimizer, observations, actions, returns):
    _, log_prob, entropy, values = agent.get_action_and_value(observations, actions)
    advantages = returns - values
    loss = -(log_prob * advantages.detach()).mean() + 0.5 * advantages.square().mean() - 0.01 * entropy.mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()


torch.set_num_threads(1)
torch.manual_seed(1)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), 3e-3)
envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
observations, _ = envs.reset(seed=1)
episode_returns, running_returns = [], np.zeros(NUM_ENVS)
for _ in range(TOTAL_ENV_STEPS // (ROLLOUT_LENGTH * NUM_ENVS)):
    block = {name: [] for name in ("observations", "actions", "rewards", "next_values", "terminated", "truncated")}
    for _ in range(ROLLOUT_LENGTH):
        with torch.inference_mode():
            actions, _, _, _ = agent.get_action_and_value(torch.as_tensor(observations))
        new_observations, rewards, terminated, truncated, infos = envs.step(actions.numpy())
        ended = terminated | truncated
        next_observations = new_observations.copy()
        for i in np.flatnonzero(ended):
            next_observations[i] = infos["final_obs"][i]  # new_observations[i] is from the next episode
        with torch.inference_mode():
            next_values = agent.value(torch.as_tensor(next_observations))
        step = (observations, actions.numpy(), rewards, next_values.numpy(), terminated, truncated)
        for values, value in zip(block.values(), step, strict=True):
            values.append(value)
        running_returns += rewards
        episode_returns += running_returns[ended].tolist()
        running_returns[ended] = 0.0
        observations = new_observations
    block = {name: np.stack(values) for name, values in block.items()}
    returns = discounted_returns(
        block["rewards"].astype(np.float32), block["next_values"], block["terminated"], block["truncated"], gamma=GAMMA
    )
    learn(agent, optimizer, *(torch.as_tensor(values) for values in (block["observations"], block["actions"], returns)))
envs.close()
print(f"mean return of the last 100 episodes: {np.mean(episode_returns[-100:]):.1f}")
