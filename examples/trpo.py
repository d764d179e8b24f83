"""TRPO on CartPole-v1 with parallel workers.

Trust Region Policy Optimization (Schulman et al., 2015, arXiv:1502.05477). After each rollout the policy takes one step
along the natural gradient, which conjugate gradients find. The mean KL divergence from the policy that acted bounds the
step, and a line search halves it until the policy improves. The value network is fitted to the returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gymnasium as gym
import torch
from script import CommonArgs, Curve, flag, keep, parse
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from parenv import AsyncWorkerPool, Rollout, Stop, TorchPolicy
from parenv.returns import gae


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(200_000, "give up after so many env steps")
    stop_return: float = flag(475.0, "mean return of the last 100 episodes that ends the training")
    num_envs: int = flag(16, "environments")
    num_workers: int = flag(2, "worker processes; 0: everything in one")
    rollout_length: int = flag(64, "steps per environment between two updates")
    gamma: float = flag(0.99, "discount of a step")
    gae_lambda: float = flag(0.95, "of the generalized advantage estimation")
    max_kl: float = flag(0.02, "mean divergence from the policy that acted that a step may have")
    damping: float = flag(0.1, "what is added to the Fisher matrix's diagonal")
    conjugate_steps: int = flag(10, "of the search for the direction")
    halvings: int = flag(10, "of the step, before it is given up")
    value_learning_rate: float = flag(1e-3, "of the value network's optimizer")
    value_epochs: int = flag(10, "passes of the value network over each rollout")
    minibatch_size: int = flag(128, "samples of a gradient step of the value network")


def mlp(inputs: int, outputs: int, last_gain: float, hidden: int = 64) -> nn.Sequential:
    layers = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Agent(nn.Module):
    """A policy network and, apart from it, a value network."""

    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__()
        self.actor = mlp(obs_size, num_actions, last_gain=0.01)
        self.critic = mlp(obs_size, 1, last_gain=1.0)

    def policy(self, obs: Tensor) -> Categorical:
        return Categorical(logits=self.actor(obs), validate_args=False)

    def get_value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.critic(obs).squeeze(-1)
        return value

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(obs).sample(), self.get_value(obs)


def make_agent(env_id: str) -> Agent:
    with gym.make(env_id) as env:
        assert isinstance(env.observation_space, gym.spaces.Box)
        assert isinstance(env.action_space, gym.spaces.Discrete)
        return Agent(env.observation_space.shape[0], int(env.action_space.n))


def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, steps: int) -> Tensor:
    """Solve A x = b, where A is known by its products with vectors."""
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    norm = residual.dot(residual)
    for _ in range(steps):
        curved = product(direction)
        length = norm / direction.dot(curved)
        x += length * direction
        residual -= length * curved
        before, norm = norm, residual.dot(residual)
        if norm < 1e-10:
            break
        direction = residual + norm / before * direction
    return x


def improve_policy(agent: Agent, args: Args, obs: Tensor, actions: Tensor, advantages: Tensor) -> None:
    """One step inside the trust region; none where no halving of it makes the policy better."""
    parameters = list(agent.actor.parameters())
    acted = Categorical(logits=agent.policy(obs).logits.detach())
    weight = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    def gain() -> Tensor:
        ratio = (agent.policy(obs).log_prob(actions) - acted.log_prob(actions)).exp()
        return (ratio * weight).mean()

    def divergence() -> Tensor:
        return kl_divergence(acted, agent.policy(obs)).mean()

    slope = parameters_to_vector(torch.autograd.grad(divergence(), parameters, create_graph=True))

    def fisher_product(vector: Tensor) -> Tensor:
        product = torch.autograd.grad(slope.dot(vector), parameters, retain_graph=True)
        return parameters_to_vector(product) + args.damping * vector

    before = gain()
    gradient = parameters_to_vector(torch.autograd.grad(before, parameters))
    direction = conjugate_gradients(fisher_product, gradient, args.conjugate_steps)
    step = (2 * args.max_kl / (direction.dot(fisher_product(direction)) + 1e-8)).sqrt() * direction
    start = parameters_to_vector(parameters).detach()
    with torch.no_grad():
        for halved in range(args.halvings):
            vector_to_parameters(start + step * 0.5**halved, parameters)
            if gain() > before and divergence() <= 1.5 * args.max_kl:
                return
        vector_to_parameters(start, parameters)


def fit_values(agent: Agent, optimizer: torch.optim.Optimizer, args: Args, obs: Tensor, returns: Tensor) -> None:
    for _ in range(args.value_epochs):
        for rows in torch.randperm(len(obs)).split(args.minibatch_size):
            optimizer.zero_grad()
            (returns[rows] - agent.get_value(obs[rows])).square().mean().backward()
            optimizer.step()


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    def process(policy: TorchPolicy, rollout: Rollout) -> dict[str, object]:
        next_values = rollout.next_values(rollout.extras["value"], policy.module.get_value)
        steps = (rollout.rewards, rollout.extras["value"], next_values, rollout.terminated, rollout.truncated)
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda)
        return {"advantages": advantages, "returns": returns}

    policy = TorchPolicy(agent, "act", ("actions", "value"))
    size = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    return AsyncWorkerPool(args.env_id, policy, mode="sync", seed=args.seed, postprocess=process, **size)


def main(argv: Sequence[str] | None = None) -> Curve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    curve = Curve()

    agent = make_agent(args.env_id)
    optimizer = torch.optim.Adam(agent.critic.parameters(), lr=args.value_learning_rate)
    with make_pool(args, agent) as pool:
        for rollout in pool.rollouts(Stop(args.total_env_steps, mean_return=args.stop_return)):
            block = rollout.to("cpu")
            blocks = (block.observations, block.actions, block.extras["advantages"], block.extras["returns"])
            obs, actions, advantages, returns = (x.flatten(0, 1) for x in blocks)
            improve_policy(agent, args, obs, actions, advantages)
            fit_values(agent, optimizer, args, obs, returns)
            pool.publish(agent)
            curve.add(pool.statistics().env_steps, rollout.episodes.returns.tolist())

    curve.print_last()
    keep(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
