"""Train double DQN on CartPole-v1 with one or several data-parallel learners.

The algorithm is the one of dqn.py. `torchrun` starts any number of learners, on one machine or several:

    python examples/dqn_ddp.py
    torchrun --nproc-per-node 2 examples/dqn_ddp.py --iterations 100 200 500 1000

All learners run this program with the same arguments. Together, they collect as many env steps and learn from as many
samples as a single learner. parenv gives each learner its part of the environments and workers. Each learner samples
its part of a batch from its own replay buffer. Averaging the gradients keeps the networks bitwise identical.

Rank 0 prints a row after each number of `--iterations`: iterations, seconds of training, mean loss, env steps, and mean
length of the evaluation episodes. On CartPole-v1, the length of an episode is its return.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
from dqn import QNetwork, ReplayBuffer
from script import CommonArgs, Curve, flag, parse, save_results
from torch import Tensor, nn

from parenv import AsyncWorkerPool, TorchPolicy
from parenv.learning import all_reduce_gradients


@dataclass
class Args(CommonArgs):
    iterations: tuple[int, ...] = flag(
        (500,), "Iterations after which to evaluate and print a row; the last one ends the training"
    )
    num_envs: int = flag(8, "Number of environments of all learners together")
    num_workers: int = flag(2, "Number of worker processes of all learners together; 0: run everything in the learners")
    rollout_length: int = flag(16, "Env steps per environment and iteration")
    gradient_steps: int = flag(16, "Number of gradient steps per iteration")
    learning_starts: int = flag(2_000, "Env steps of all learners together before the first gradient step")
    learning_rate: float = flag(5e-4, "Learning rate")
    gamma: float = flag(0.99, "Discount factor")
    batch_size: int = flag(128, "Number of transitions per batch, of all learners together")
    buffer_size: int = flag(100_000, "Capacity of all replay buffers together in transitions")
    tau: float = flag(0.01, "Polyak averaging coefficient of the target network")
    epsilon_start: float = flag(1.0, "Initial probability of a random action")
    epsilon_end: float = flag(0.02, "Final probability of a random action")
    epsilon_steps: int = flag(20_000, "Env steps over which epsilon decays linearly")
    max_grad_norm: float = flag(10.0, "Maximum norm of the gradient")
    evaluation_episodes: int = flag(20, "Number of evaluation episodes per row, of all learners together")


class Row(NamedTuple):
    """Measurements of all learners after a number of iterations."""

    iterations: int
    seconds: float  # training time without evaluations
    loss: float  # mean of the gradient steps since the last row; NaN if there were none
    env_steps: int
    steps_balanced: float  # mean length of the evaluation episodes

    def __str__(self) -> str:
        return f"{self[0]:10d}  {self[1]:8.1f}  {self[2]:8.5f}  {self[3]:9d}  {self[4]:25.1f}"


TITLE = f"{'iterations':>10}  {'seconds':>8}  {'loss':>8}  {'env steps':>9}  {'evaluation episode length':>25}"


class Agent(QNetwork):
    """Q-network of dqn.py with greedy actions for the evaluation."""

    def greedy(self, obs: Tensor) -> Tensor:
        values: Tensor = self(obs)
        return values.argmax(-1)


def make_agent(env_id: str) -> Agent:
    with gym.make(env_id) as env:
        assert isinstance(env.action_space, gym.spaces.Discrete)
        return Agent(gym.spaces.flatdim(env.observation_space), int(env.action_space.n))


def join_learners() -> torch.device:
    """Join the process group of torchrun, if there is one. Return the device: a GPU per learner, or the CPU."""
    local_rank, local_world_size = (int(os.environ.get(f"LOCAL_{key}", 0)) for key in ("RANK", "WORLD_SIZE"))
    use_cuda = torch.cuda.device_count() >= max(1, local_world_size)
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("nccl" if use_cuda else "gloo", device_id=device if use_cuda else None)
    return device


def mean_over_learners(value: float, device: torch.device) -> float:
    mean = torch.tensor(value, dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
    return mean.item()


def assert_equal_on_all_learners(module: nn.Module) -> None:
    """Raise an error if the parameters are not bitwise identical to the parameters of rank 0."""
    # Compare the bits as integers, because 0.0 == -0.0.
    local = torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).view(torch.int32)
    first = local.clone()
    if dist.is_initialized():
        dist.broadcast(first, src=0)
    assert torch.equal(local, first), "the network of this learner differs from the network of rank 0"


def double_q_loss(agent: Agent, target: Agent, batch: Sequence[Tensor], gamma: float) -> Tensor:
    obs, actions, rewards, next_obs, terminated = batch
    with torch.no_grad():
        # Double Q-learning: the Q-network selects the next action, and the target network evaluates it.
        next_actions = agent.greedy(next_obs).unsqueeze(-1)
        td_target = rewards + gamma * (1.0 - terminated) * target(next_obs).gather(-1, next_actions).squeeze(-1)
    value = agent(obs).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return nn.functional.smooth_l1_loss(value, td_target)


def train(args: Args, device: torch.device) -> list[Row]:
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if args.batch_size % world_size:
        raise ValueError(f"--batch-size must be a multiple of the {world_size} learners, got {args.batch_size}")
    torch.manual_seed(args.seed)  # all learners start with the same weights
    agent = make_agent(args.env_id)
    agent.to(device)
    policy = TorchPolicy(agent, "act", ("actions",), deterministic_method="greedy")
    target = copy.deepcopy(agent)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, fused=True)
    obs_shape = (agent.layers[0].in_features,)
    buffer = ReplayBuffer(args.buffer_size // world_size, obs_shape, seed=args.seed + rank)
    rows: list[Row] = []
    losses: list[float] = []

    def update() -> None:
        batch = [part.to(device) for part in buffer.sample(args.batch_size // world_size)]
        loss = double_q_loss(agent, target, batch, args.gamma)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        all_reduce_gradients(agent)  # mean over all learners; the only change for data parallelism
        nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()
        with torch.no_grad():
            for target_param, param in zip(target.parameters(), agent.parameters(), strict=True):
                target_param.lerp_(param, args.tau)

    sizes = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    with AsyncWorkerPool(args.env_id, policy, mode="sync", seed=args.seed, **sizes) as pool:
        started = time.perf_counter()
        for iteration, rollout in enumerate(islice(pool.rollouts(), max(args.iterations)), start=1):
            env_steps = iteration * args.rollout_length * args.num_envs  # of all learners
            new = rollout.to("cpu").transitions()
            buffer.add(new.observations, new.actions, new.rewards, new.next_observations, new.terminated)
            if env_steps >= args.learning_starts:
                for _ in range(args.gradient_steps):
                    update()
            progress = min(1.0, env_steps / args.epsilon_steps)
            agent.epsilon.fill_(args.epsilon_start + progress * (args.epsilon_end - args.epsilon_start))
            pool.publish(agent)
            if iteration in args.iterations:
                seconds = time.perf_counter() - started
                evaluation = pool.evaluate(max(1, args.evaluation_episodes // world_size), deterministic=True)
                loss = mean_over_learners(float(np.mean(losses)) if losses else float("nan"), device)
                length = mean_over_learners(float(evaluation.lengths.mean()), device)
                rows.append(Row(iteration, seconds, loss, env_steps, length))
                losses.clear()
                if rank == 0:
                    print(*([TITLE] if len(rows) == 1 else []), rows[-1], sep="\n", flush=True)
                started = time.perf_counter() - seconds  # excludes the evaluation
        assert_equal_on_all_learners(agent)
    if rank == 0:
        curve = Curve(window=args.evaluation_episodes)
        curve.points = [(row.env_steps, row.seconds, row.steps_balanced) for row in rows]
        save_results(args, curve, agent)
    return rows


def main(argv: Sequence[str] | None = None) -> list[Row]:
    args = parse(Args, argv)
    torch.set_num_threads(args.torch_threads)
    device = join_learners()
    try:
        return train(args, device)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
