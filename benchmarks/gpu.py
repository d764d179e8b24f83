"""Gain from a GPU for PPO and DQN, with a small MLP and with convolutions.

The cases are: all on the CPU, only the learner on the GPU, and learner and workers on the GPU.

python benchmarks/gpu.py            all cases, stored under results/; requires a CUDA device
python benchmarks/gpu.py --cpu      only the case without a GPU, as a check of the script; stores nothing
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from lib.common import interleaved, keep, nature_body, summary
from torch import nn

from parenv import AsyncWorkerPool, Rollout, TorchPolicy, WorkerOptions
from parenv.learning import prefetch

NUM_ENVS, NUM_WORKERS, ROLLOUT_LENGTH, UPDATES, WARM_UPS, REPEATS = 32, 4, 64, 12, 3, 3


class Case(NamedTuple):
    """Devices of one case, and how rollouts reach the learner.

    Args:
        learner: Device of the learner.
        workers: Device of the workers' policies.
        prefetches: Whether :func:`~parenv.learning.prefetch` moves rollouts to the learner ahead of their use.
    """

    learner: str
    workers: str
    prefetches: bool


CASES = {
    "all on the CPU": Case("cpu", "cpu", False),
    "GPU learner, pageable copies": Case("cuda", "cpu", False),
    "GPU learner, pinned and prefetched": Case("cuda", "cpu", True),
    "GPU learner and GPU workers": Case("cuda", "cuda", True),
}


class Pixels(gym.Env[Any, Any]):
    """Environment with observations ``[4, 84, 84]`` in uint8 and almost free steps."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def __init__(self) -> None:
        self._observation = np.random.default_rng(0).integers(0, 256, (4, 84, 84), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        return self._observation, {}

    def step(self, action: Any) -> Any:
        """Change a pixel."""
        self._observation[0, 0, 0] += 1
        return self._observation, 1.0, False, False, {}


class Net(nn.Module):
    """Network with a common body and two heads: a score per action (a logit or an action value), and a state value.

    Args:
        body: Module from scaled observations in float32 to features ``[N, features]``.
        features: Number of features.
        actions: Number of actions.
        scale: Factor for observations.
    """

    def __init__(self, body: nn.Module, features: int, actions: int, scale: float) -> None:
        super().__init__()
        self.body, self.scale = body, scale
        self.scores, self.value = nn.Linear(features, actions), nn.Linear(features, 1)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores ``[N, actions]`` and values ``[N]``."""
        features = self.body(observations.float() * self.scale)
        return self.scores(features), self.value(features)[:, 0]

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return sampled actions and their log-probabilities, each ``[N]``."""
        policy = torch.distributions.Categorical(logits=self(observations)[0], validate_args=False)
        actions = policy.sample()
        return actions, policy.log_prob(actions)


def mlp() -> Net:
    """Make an MLP with two layers of 64 units for CartPole."""
    return Net(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()), 64, 2, 1.0)


def convolutions() -> Net:
    """Make the network of Mnih et al. 2015, with 1.7 million parameters."""
    return Net(nature_body(), 512, 6, 1 / 255)


NETS: dict[str, tuple[Callable[[], Net], Callable[[], Any]]] = {
    "MLP": (mlp, lambda: gym.make("CartPole-v1")),
    "convolutions": (convolutions, Pixels),
}


def ppo_loss(net: Net, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the clipped objective of PPO plus a value loss.

    Rewards replace the returns, because the benchmark needs only the same amount of computation.
    """
    scores, values = net(batch["observations"])
    policy = torch.distributions.Categorical(logits=scores, validate_args=False)
    ratio = (policy.log_prob(batch["actions"]) - batch["log_prob"]).exp()
    advantages = batch["rewards"] - values.detach()
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return (batch["rewards"] - values).square().mean() - gain.mean()


def dqn_loss(net: Net, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean squared error to one-step targets, without a target network."""
    with torch.no_grad():
        wanted = batch["rewards"] + 0.99 * net(batch["next_observations"])[0].amax(-1)
    return (net(batch["observations"])[0].gather(-1, batch["actions"][:, None])[:, 0] - wanted).square().mean()


ALGORITHMS = {"PPO, 4 epochs": (ppo_loss, 4), "DQN, 1 epoch": (dqn_loss, 1)}


def learn(net: Net, optimizer: torch.optim.Optimizer, rollout: Rollout, loss_fn: Any, epochs: int) -> None:
    """Train on minibatches of 256 transitions from a rollout. Each epoch uses every transition once."""
    flat = rollout.transitions()
    fields = {
        "observations": flat.observations, "actions": flat.actions, "rewards": flat.rewards,
        "next_observations": flat.next_observations, "log_prob": flat.extras["log_prob"],
    }  # fmt: skip
    for _ in range(epochs):
        for chosen in torch.randperm(len(flat), device=flat.rewards.device).split(256):
            optimizer.zero_grad()
            loss_fn(net, {name: values[chosen] for name, values in fields.items()}).backward()
            optimizer.step()


def seconds_per_update(case: Case, net_name: str, algorithm: str, utilisation: list[float]) -> float:
    """Return the seconds per update, after several warm-up updates.

    Args:
        case: Devices.
        net_name: Key of :data:`NETS`.
        algorithm: Key of :data:`ALGORITHMS`.
        utilisation: List to which the function appends the GPU utilization in percent, once per update.
    """
    make_net, make_env = NETS[net_name]
    loss_fn, epochs = ALGORITHMS[algorithm]
    net = make_net().to(case.learner)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    policy = TorchPolicy(net, "act", ("actions", "log_prob"))
    with AsyncWorkerPool(
        make_env, policy, num_envs=NUM_ENVS, num_workers=NUM_WORKERS, mode="async", rollout_length=ROLLOUT_LENGTH,
        workers=WorkerOptions(device=case.workers),
    ) as pool:  # fmt: skip
        arrived = pool.rollouts()
        moved: Iterator[Rollout] = (
            prefetch(arrived, case.learner) if case.prefetches else (r.to(case.learner) for r in arrived)
        )
        began = 0.0
        for update, rollout in enumerate(moved):
            learn(net, optimizer, rollout, loss_fn, epochs)
            pool.publish(net)
            if case.learner == "cuda":
                utilisation.append(float(torch.cuda.utilization()))
            if update == WARM_UPS:
                began = time.perf_counter()
            if update == WARM_UPS + UPDATES:
                return (time.perf_counter() - began) / UPDATES
    raise AssertionError("the stream of rollouts ended early")


def compare(net_name: str, algorithm: str, cases: dict[str, Case]) -> dict[str, Any]:
    """Measure all cases in turn and return their summary, with the mean GPU utilization in percent."""
    utilisation: dict[str, list[float]] = {name: [] for name in cases}
    found = summary(
        interleaved(
            {
                name: lambda name=name, case=case: seconds_per_update(case, net_name, algorithm, utilisation[name])  # type: ignore[misc]
                for name, case in cases.items()
            },
            REPEATS,
        ),
        "all on the CPU",
    )
    for name, percents in utilisation.items():
        if percents:
            found[name]["gpu_utilisation_percent"] = statistics.mean(percents)
    return found


def main() -> None:
    """Measure and store all cases, or with ``--cpu`` only print the case without a GPU."""
    only_cpu = "--cpu" in sys.argv
    if not only_cpu and not torch.cuda.is_available():
        print("No CUDA device is available, so there is nothing to compare. Use --cpu to check that the script runs.")
        return
    cases = {name: case for name, case in CASES.items() if not only_cpu or case.learner == "cpu"}
    for algorithm in ALGORITHMS:
        for net_name in NETS:
            found = compare(net_name, algorithm, cases)
            if only_cpu:
                print(found)
            else:
                keep("gpu", f"{algorithm}, {net_name}", found)


if __name__ == "__main__":
    main()
