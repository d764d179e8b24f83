"""Does a GPU help? PPO and DQN, a small MLP and convolutions: all on the CPU, a GPU learner, GPU workers too.

python benchmarks/gpu.py            with a CUDA device: all cases, kept under results/
python benchmarks/gpu.py --cpu      without one: the case that needs none, to see that it runs; nothing is kept
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
    """Devices of learner and workers, and the path of a rollout to the learner."""

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
    """84 x 84 x 4 bytes, a step of almost nothing."""

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
    """Logits or action values, and a value, from a body.

    Args:
        body: maps observations in floats to features.
        features: how many.
        actions: how many.
        scale: of the observations.
    """

    def __init__(self, body: nn.Module, features: int, actions: int, scale: float) -> None:
        super().__init__()
        self.body, self.scale = body, scale
        self.scores, self.value = nn.Linear(features, actions), nn.Linear(features, 1)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores ``[N, A]`` and values ``[N]``."""
        features = self.body(observations.float() * self.scale)
        return self.scores(features), self.value(features)[:, 0]

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sampled actions and their log probabilities."""
        policy = torch.distributions.Categorical(logits=self(observations)[0], validate_args=False)
        actions = policy.sample()
        return actions, policy.log_prob(actions)


def mlp() -> Net:
    """For CartPole."""
    return Net(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()), 64, 2, 1.0)


def convolutions() -> Net:
    """Network of Mnih et al. 2015 with 1.7 million parameters."""
    return Net(nature_body(), 512, 6, 1 / 255)


NETS: dict[str, tuple[Callable[[], Net], Callable[[], Any]]] = {
    "MLP": (mlp, lambda: gym.make("CartPole-v1")),
    "convolutions": (convolutions, Pixels),
}


def ppo_loss(net: Net, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The clipped objective with plain rewards for returns; the amount of work is what matters."""
    scores, values = net(batch["observations"])
    policy = torch.distributions.Categorical(logits=scores, validate_args=False)
    ratio = (policy.log_prob(batch["actions"]) - batch["log_prob"]).exp()
    advantages = batch["rewards"] - values.detach()
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return (batch["rewards"] - values).square().mean() - gain.mean()


def dqn_loss(net: Net, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """One-step targets by the network itself."""
    with torch.no_grad():
        wanted = batch["rewards"] + 0.99 * net(batch["next_observations"])[0].amax(-1)
    return (net(batch["observations"])[0].gather(-1, batch["actions"][:, None])[:, 0] - wanted).square().mean()


ALGORITHMS = {"PPO, 4 epochs": (ppo_loss, 4), "DQN, 1 epoch": (dqn_loss, 1)}


def learn(net: Net, optimizer: torch.optim.Optimizer, rollout: Rollout, loss_fn: Any, epochs: int) -> None:
    """Minibatches of 256 from a rollout, each transition once an epoch."""
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
    """Seconds from one learned rollout to the next; notes how busy the GPU was, in percent."""
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
            if update == WARM_UPS:
                began = time.perf_counter()
            learn(net, optimizer, rollout, loss_fn, epochs)
            pool.publish(net)
            if case.learner == "cuda":
                utilisation.append(float(torch.cuda.utilization()))
            if update == WARM_UPS + UPDATES:
                return (time.perf_counter() - began) / UPDATES
    raise AssertionError("a stream without an end has ended")


def compare(net_name: str, algorithm: str, cases: dict[str, Case]) -> dict[str, Any]:
    """All cases, interleaved."""
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
    """Measure all cases there is a device for."""
    only_cpu = "--cpu" in sys.argv
    if not only_cpu and not torch.cuda.is_available():
        print("no CUDA device: nothing to compare")
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
