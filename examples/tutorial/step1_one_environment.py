"""Step 1: train an actor-critic on CartPole-v1 in one environment.

    python examples/tutorial/step1_one_environment.py 100000

trains for 100,000 env steps and prints the mean return of the last 100 episodes. The algorithm is an advantage
actor-critic (A2C; Mnih et al., 2016, arXiv:1602.01783) with n-step returns. docs/tutorial.md explains all steps.
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from torch import nn

TOTAL_ENV_STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
ROLLOUT_LENGTH, GAMMA = 64, 0.98


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
env = gym.make("CartPole-v1")
observation, _ = env.reset(seed=1)
episode_returns, episode_return = [], 0.0
for _ in range(TOTAL_ENV_STEPS // ROLLOUT_LENGTH):
    observations, actions, rewards, next_values, ended = [], [], [], [], []
    for _ in range(ROLLOUT_LENGTH):
        with torch.inference_mode():
            action, _, _, _ = agent.get_action_and_value(torch.as_tensor(observation))
        next_observation, reward, terminated, truncated, _ = env.step(action.item())
        # Terminated episodes do not bootstrap. Truncated ones bootstrap from the value of their last observation.
        with torch.inference_mode():
            next_values.append(0.0 if terminated else agent.value(torch.as_tensor(next_observation)).item())
        observations.append(observation)
        actions.append(action.item())
        rewards.append(float(reward))
        ended.append(terminated or truncated)
        episode_return += float(reward)
        observation = next_observation
        if terminated or truncated:
            episode_returns.append(episode_return)
            observation, _ = env.reset()
            episode_return = 0.0
    returns, next_return = [], next_values[-1]
    for t in reversed(range(ROLLOUT_LENGTH)):
        next_return = rewards[t] + GAMMA * (next_values[t] if ended[t] else next_return)
        returns.insert(0, next_return)
    learn(agent, optimizer, torch.as_tensor(np.stack(observations)), torch.as_tensor(actions), torch.as_tensor(returns))
env.close()
print(f"mean return of the last 100 episodes: {np.mean(episode_returns[-100:]):.1f}")
