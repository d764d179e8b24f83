"""Step 3: two workers step the environments, act, and compute the returns. This process only learns.

    python examples/tutorial/step3_workers.py 100000

trains for 100,000 env steps and prints the mean return of the last 100 episodes.
"""

import sys

import gymnasium as gym
import torch
from torch import nn

from parenv import AsyncWorkerPool, Stop, TorchPolicy
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


def targets(policy, rollout):  # called on the workers, without gradients
    next_values = rollout.next_values(rollout.extras["value"], policy.module.value)
    return {
        "returns": discounted_returns(rollout.rewards, next_values, rollout.terminated, rollout.truncated, gamma=GAMMA)
    }


torch.set_num_threads(1)
torch.manual_seed(1)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), 3e-3)
policy = TorchPolicy(agent, outputs=("actions", None, None, "value"))
with AsyncWorkerPool(
    lambda: gym.make("CartPole-v1"),
    policy,
    num_envs=NUM_ENVS,
    num_workers=2,
    mode="sync",
    rollout_length=ROLLOUT_LENGTH,
    postprocess=targets,
    seed=1,
) as pool:
    for rollout in pool.rollouts(Stop(env_steps=TOTAL_ENV_STEPS)):
        batch = rollout.to("cpu")
        learn(agent, optimizer, batch.observations, batch.actions, batch.extras["returns"])
        pool.publish(agent)
    print(f"mean return of the last 100 episodes: {pool.statistics().mean_return:.1f}")
