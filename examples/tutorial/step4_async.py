"""Step 4: workers continue to collect while this process learns, and V-trace corrects for the policy lag.

    python examples/tutorial/step4_async.py 100000

trains for 100,000 env steps and prints the mean return of the last 100 episodes and the rollouts by policy lag.
V-trace is the off-policy correction of IMPALA (Espeholt et al., 2018, arXiv:1802.01561).
"""

import sys

import gymnasium as gym
import torch
from torch import nn

from parenv import AsyncWorkerPool, Stop, TorchPolicy
from parenv.returns import vtrace

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


def learn(agent, optimizer, batch):
    _, log_prob, entropy, values = agent.get_action_and_value(batch.observations, batch.actions)
    next_values = batch.next_values(values, agent.value)
    steps = (batch.rewards, values, next_values, batch.terminated, batch.truncated)
    corrected = vtrace(batch.extras["log_prob"], log_prob, *steps, gamma=GAMMA)
    value_loss = (corrected.targets - values).square().mean()
    loss = -(log_prob * corrected.advantages).mean() + 0.5 * value_loss - 0.01 * entropy.mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()


torch.set_num_threads(1)
torch.manual_seed(1)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), 3e-3)
policy = TorchPolicy(agent, outputs=("actions", "log_prob", None, None))
with AsyncWorkerPool(
    lambda: gym.make("CartPole-v1"),
    policy,
    num_envs=NUM_ENVS,
    num_workers=2,
    mode="async",
    rollout_length=ROLLOUT_LENGTH,
    max_policy_lag=4,
    seed=1,
) as pool:
    for rollout in pool.rollouts(Stop(env_steps=TOTAL_ENV_STEPS)):
        learn(agent, optimizer, rollout.to("cpu"))
        pool.publish(agent)
    print(f"mean return of the last 100 episodes: {pool.statistics().mean_return:.1f}")
    print(f"rollouts by policy lag: {dict(pool.statistics().policy_lag)}")
