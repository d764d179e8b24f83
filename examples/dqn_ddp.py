"""Double DQN on CartPole-v1 by several learners that hold the same network: dqn.py, its learning done by many.

Alone, or as many as `torchrun` starts, on one machine or several:

    python examples/dqn_ddp.py
    torchrun --nproc-per-node 2 examples/dqn_ddp.py --iterations 100 200 500 1000

All learners run this file with the same arguments. Together they collect and learn as much as one alone: parenv gives
each its share of the environments and workers, and each samples its share of the batch from its own transitions. The
mean of the gradients keeps the networks bitwise identical.
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
from script import CommonArgs, Curve, flag, keep, parse
from torch import Tensor, nn

from parenv import AsyncWorkerPool, TorchPolicy
from parenv.learning import all_reduce_gradients


@dataclass
class Args(CommonArgs):
    iterations: tuple[int, ...] = flag((500,), "where to report; the training ends at the largest")
    num_envs: int = flag(8, "of all learners together, as are the next one and the batch size")
    num_workers: int = flag(2, "worker processes; 0: everything in one")
    rollout_length: int = flag(16, "steps per environment in an iteration")
    gradient_steps: int = flag(16, "in an iteration")
    learning_starts: int = flag(2_000, "env steps before the first gradient step")
    learning_rate: float = flag(5e-4, "of the optimizer")
    gamma: float = flag(0.99, "discount of a step")
    batch_size: int = flag(128, "samples of a gradient step")
    buffer_size: int = flag(100_000, "transitions that the replay buffer holds")
    target_rate: float = flag(0.01, "how far the target network moves in each gradient step")
    epsilon_start: float = flag(1.0, "share of random actions at first")
    epsilon_end: float = flag(0.02, "share of random actions in the end")
    epsilon_steps: int = flag(20_000, "env steps from the first to the last epsilon")
    max_grad_norm: float = flag(10.0, "to which gradients are clipped")
    evaluation_episodes: int = flag(20, "at each report")


class Row(NamedTuple):
    """Report of all learners after some number of iterations."""

    iterations: int
    seconds: float  # of training
    loss: float  # mean over the gradient steps since the last report; NaN without any
    env_steps: int
    steps_balanced: float  # mean length of the evaluation's episodes

    def __str__(self) -> str:
        return f"{self[0]:10d}  {self[1]:8.1f}  {self[2]:8.5f}  {self[3]:9d}  {self[4]:25.1f}"


TITLE = f"{'iterations':>10}  {'seconds':>8}  {'loss':>8}  {'env steps':>9}  {'steps balanced afterwards':>25}"


class Agent(QNetwork):
    """The Q-network of dqn.py, which can also do without exploration."""

    def best(self, obs: Tensor) -> Tensor:
        values: Tensor = self(obs)
        return values.argmax(-1)


def make_agent(env_id: str) -> Agent:
    with gym.make(env_id) as env:
        assert isinstance(env.action_space, gym.spaces.Discrete)
        return Agent(gym.spaces.flatdim(env.observation_space), int(env.action_space.n))


def join_learners() -> torch.device:
    """Meet the other processes of torchrun, if there are any; where to learn: on a GPU each, or on the CPU."""
    local_rank, local_world_size = (int(os.environ.get(f"LOCAL_{key}", 0)) for key in ("RANK", "WORLD_SIZE"))
    on_gpus = torch.cuda.device_count() >= max(1, local_world_size)
    device = torch.device("cuda", local_rank) if on_gpus else torch.device("cpu")
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("nccl" if on_gpus else "gloo", device_id=device if on_gpus else None)
    return device


def mean_over_learners(value: float, device: torch.device) -> float:
    mean = torch.tensor(value, dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
    return mean.item()


def assert_all_learners_have_equal(module: nn.Module) -> None:
    """Raise an error unless the parameters are bitwise equal. As integers, 0.0 and -0.0 differ."""
    mine = torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).view(torch.int32)
    first = mine.clone()
    if dist.is_initialized():
        dist.broadcast(first, src=0)
    assert torch.equal(mine, first), "this learner's network is not that of rank 0"


def double_q_loss(agent: Agent, target: Agent, batch: Sequence[Tensor], gamma: float) -> Tensor:
    obs, actions, rewards, next_obs, terminated = batch
    with torch.no_grad():
        best = agent.best(next_obs).unsqueeze(-1)
        wanted = rewards + gamma * (1.0 - terminated) * target(next_obs).gather(-1, best).squeeze(-1)
    value = agent(obs).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return nn.functional.smooth_l1_loss(value, wanted)


def train(args: Args, device: torch.device) -> list[Row]:
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if args.batch_size % world_size:
        raise ValueError(f"a batch of {args.batch_size} cannot be shared evenly by {world_size} learners")
    torch.manual_seed(args.seed)  # the same for all, so that the networks begin equal
    agent = make_agent(args.env_id)
    agent.to(device)
    policy = TorchPolicy(agent, "act", ("actions",), deterministic_method="best")
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
        all_reduce_gradients(agent)  # the one line that makes this several learners
        nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), agent.parameters(), strict=True):
                slow.lerp_(fast, args.target_rate)

    size = {"num_envs": args.num_envs, "num_workers": args.num_workers, "rollout_length": args.rollout_length}
    with AsyncWorkerPool(args.env_id, policy, mode="sync", seed=args.seed, **size) as pool:
        started = time.perf_counter()
        for iteration, rollout in enumerate(islice(pool.rollouts(), max(args.iterations)), start=1):
            env_steps = iteration * args.rollout_length * args.num_envs  # of all learners
            new = rollout.to("cpu").transitions()
            buffer.add(new.observations, new.actions, new.rewards, new.next_observations, new.terminated)
            if env_steps >= args.learning_starts:
                for _ in range(args.gradient_steps):
                    update()
            done = min(1.0, env_steps / args.epsilon_steps)
            agent.epsilon.fill_(args.epsilon_start + done * (args.epsilon_end - args.epsilon_start))
            pool.publish(agent)
            if iteration in args.iterations:
                seconds = time.perf_counter() - started
                mine = pool.evaluate(max(1, args.evaluation_episodes // world_size), deterministic=True)
                loss = mean_over_learners(float(np.mean(losses)) if losses else float("nan"), device)
                balanced = mean_over_learners(float(mine.lengths.mean()), device)
                rows.append(Row(iteration, seconds, loss, env_steps, balanced))
                losses.clear()
                if rank == 0:
                    print(*([TITLE] if len(rows) == 1 else []), rows[-1], sep="\n", flush=True)
                started = time.perf_counter() - seconds
        assert_all_learners_have_equal(agent)
    if rank == 0:
        curve = Curve(window=args.evaluation_episodes)
        curve.points = [(row.env_steps, row.seconds, row.steps_balanced) for row in rows]
        keep(args, curve, agent)
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
