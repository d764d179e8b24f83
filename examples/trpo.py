"""Train TRPO on CartPole-v1 with parallel workers.

Trust Region Policy Optimization (Schulman et al., 2015, arXiv:1502.05477). After each rollout, the policy takes one
step along the natural gradient, which the conjugate gradient method computes. The mean KL divergence from the old
policy limits the step. A backtracking line search halves the step until the policy improves. Minibatch updates fit the
value network to the returns. Training stops when the mean return of the last 100 episodes reaches `--stop-return`.

    python examples/trpo.py --num-workers 2

prints the env steps, the seconds and the mean return of the last 100 episodes, every 10,000 env steps and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gymnasium as gym
import torch
from script import CommonArgs, Curve, flag, parse, save_results
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from parenv import AsyncWorkerPool, Rollout, Stop, TorchPolicy
from parenv.returns import gae


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(200_000, "Maximum number of env steps")
    stop_return: float = flag(475.0, "Mean return of the last 100 episodes at which training stops")
    num_envs: int = flag(16, "Number of environments")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")
    rollout_length: int = flag(64, "Env steps per environment and rollout")
    gamma: float = flag(0.99, "Discount factor")
    gae_lambda: float = flag(0.95, "Lambda of generalized advantage estimation (GAE)")
    max_kl: float = flag(0.02, "Trust region: maximum mean KL divergence from the old policy")
    damping: float = flag(0.1, "Damping of the Fisher information matrix")
    cg_iterations: int = flag(10, "Maximum number of conjugate gradient iterations")
    line_search_steps: int = flag(10, "Maximum number of step sizes in the line search")
    value_learning_rate: float = flag(1e-3, "Learning rate of the value network")
    value_epochs: int = flag(10, "Number of passes of the value network over each rollout")
    minibatch_size: int = flag(128, "Number of transitions per minibatch of the value network")


def mlp(inputs: int, outputs: int, last_gain: float, hidden: int = 64) -> nn.Sequential:
    layers = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Agent(nn.Module):
    """Policy network and value network, which share no layers."""

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


def conjugate_gradients(matvec: Callable[[Tensor], Tensor], b: Tensor, iterations: int) -> Tensor:
    """Solve `A x = b` approximately, given the function `matvec(v) = A v`."""
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    squared_norm = residual.dot(residual)
    for _ in range(iterations):
        product = matvec(direction)
        alpha = squared_norm / direction.dot(product)
        x += alpha * direction
        residual -= alpha * product
        previous, squared_norm = squared_norm, residual.dot(residual)
        if squared_norm < 1e-10:
            break
        direction = residual + squared_norm / previous * direction
    return x


def improve_policy(agent: Agent, args: Args, obs: Tensor, actions: Tensor, advantages: Tensor) -> None:
    """Take a natural gradient step within the trust region, or none if the line search finds no improvement."""
    parameters = list(agent.actor.parameters())
    old_policy = Categorical(logits=agent.policy(obs).logits.detach())
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    def surrogate() -> Tensor:
        ratio = (agent.policy(obs).log_prob(actions) - old_policy.log_prob(actions)).exp()
        return (ratio * advantages).mean()

    def mean_kl() -> Tensor:
        return kl_divergence(old_policy, agent.policy(obs)).mean()

    kl_gradient = parameters_to_vector(torch.autograd.grad(mean_kl(), parameters, create_graph=True))

    def fisher_vector_product(vector: Tensor) -> Tensor:
        # The Fisher information matrix is the Hessian of the KL divergence at the old policy.
        product = torch.autograd.grad(kl_gradient.dot(vector), parameters, retain_graph=True)
        return parameters_to_vector(product) + args.damping * vector

    before = surrogate()
    gradient = parameters_to_vector(torch.autograd.grad(before, parameters))
    direction = conjugate_gradients(fisher_vector_product, gradient, args.cg_iterations)
    # In the quadratic approximation, this is the longest step whose KL divergence is at most max_kl.
    step = (2 * args.max_kl / (direction.dot(fisher_vector_product(direction)) + 1e-8)).sqrt() * direction
    start = parameters_to_vector(parameters).detach()
    with torch.no_grad():
        for exponent in range(args.line_search_steps):
            vector_to_parameters(start + step * 0.5**exponent, parameters)
            # As in OpenAI Baselines, the measured KL divergence may exceed max_kl by half.
            if surrogate() > before and mean_kl() <= 1.5 * args.max_kl:
                return
        vector_to_parameters(start, parameters)


def fit_values(agent: Agent, optimizer: torch.optim.Optimizer, args: Args, obs: Tensor, returns: Tensor) -> None:
    for _ in range(args.value_epochs):
        for rows in torch.randperm(len(obs)).split(args.minibatch_size):
            optimizer.zero_grad()
            (returns[rows] - agent.get_value(obs[rows])).square().mean().backward()
            optimizer.step()


def make_pool(args: Args, agent: Agent) -> AsyncWorkerPool:
    def targets(policy: TorchPolicy, rollout: Rollout) -> dict[str, object]:  # called on the workers
        next_values = rollout.next_values(rollout.extras["value"], policy.module.get_value)
        steps = (rollout.rewards, rollout.extras["value"], next_values, rollout.terminated, rollout.truncated)
        advantages, returns = gae(*steps, gamma=args.gamma, gae_lambda=args.gae_lambda)
        return {"advantages": advantages, "returns": returns}

    policy = TorchPolicy(agent, "act", ("actions", "value"))
    sizes = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    return AsyncWorkerPool(args.env_id, policy, mode="sync", seed=args.seed, postprocess=targets, **sizes)


def main(argv: Sequence[str] | None = None) -> Curve:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    curve = Curve()

    agent = make_agent(args.env_id)
    optimizer = torch.optim.Adam(agent.critic.parameters(), lr=args.value_learning_rate)
    with make_pool(args, agent) as pool:
        for rollout in pool.rollouts(Stop(args.total_env_steps, mean_return=args.stop_return)):
            batch = rollout.to("cpu")
            fields = (batch.observations, batch.actions, batch.extras["advantages"], batch.extras["returns"])
            obs, actions, advantages, returns = (x.flatten(0, 1) for x in fields)
            improve_policy(agent, args, obs, actions, advantages)
            fit_values(agent, optimizer, args, obs, returns)
            pool.publish(agent)
            curve.add(pool.statistics().env_steps, rollout.episodes.returns.tolist())

    curve.print_last()
    save_results(args, curve, agent)
    return curve


if __name__ == "__main__":
    main()
