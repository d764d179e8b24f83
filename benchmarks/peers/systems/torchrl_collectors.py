"""Rollouts and weights of TorchRL's collectors."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import torch
from environments import factory
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import GymWrapper
from torchrl.weight_update import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme

from systems.delivery import delivery_rate
from systems.exchange import milliseconds
from systems.loops import Close, Measure
from systems.networks import Agent


class Policy(torch.nn.Module):
    """Policy whose outputs are a tuple, as ``TensorDictModule`` requires."""

    def __init__(self) -> None:
        super().__init__()
        self.agent = Agent()

    def forward(self, observations: Any) -> Any:
        """Return actions, log-probabilities and values."""
        action, log_prob, _, value = self.agent.get_action_and_value(observations)
        return action, log_prob, value


def make_envs(num_envs: int) -> Any:
    """Return several CartPoles as one environment of TorchRL.

    A ``SyncVectorEnv`` that TorchRL resets is several times faster than TorchRL's ``SerialEnv``.
    """
    disabled = gym.vector.AutoresetMode.DISABLED
    envs = gym.vector.SyncVectorEnv([factory("cartpole")] * num_envs, autoreset_mode=disabled)
    return GymWrapper(envs, categorical_action_encoding=True)


def rollouts(num_envs: int, num_workers: int, rollout_length: int, kind: str) -> tuple[Measure, Close]:
    """Measure the collector with this name. A ``"Collector"`` runs in this process."""
    policy = TensorDictModule(Policy(), ["observation"], ["action", "sample_log_prob", "state_value"])
    steps, quiet = rollout_length * num_envs, {"auto_register_policy_transforms": False}
    make = [partial(make_envs, num_envs // num_workers)] * num_workers
    collector: Any
    if kind == "Collector":
        collector = Collector(make_envs(num_envs), policy, frames_per_batch=steps, **quiet)
    elif kind == "MultiSyncCollector":
        collector = MultiSyncCollector(make, policy, frames_per_batch=steps, cat_results="stack", **quiet)
    else:
        collector = MultiAsyncCollector(make, policy, frames_per_batch=steps // num_workers, **quiet)
    batches = iter(collector)
    return delivery_rate(lambda: next(batches).numel()), collector.shutdown


class Weighty(torch.nn.Module):
    """Policy with large weights that it does not use.

    Args:
        megabytes: Size of the weights.
    """

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(megabytes * 250_000))

    def forward(self, observations: Any) -> Any:
        """Return the same action for all."""
        return torch.zeros(observations.shape[:-1], dtype=torch.int64)


def weights(megabytes: int, num_workers: int, kind: str) -> tuple[Measure, Close]:
    """Measure ``update_policy_weights_``.

    Args:
        megabytes: Size of the weights.
        num_workers: Number of workers.
        kind: ``"shared"``, the default of TorchRL: one copy in shared memory for all workers. ``"private"``: each
            worker has its own copy, sent through a queue.
    """
    schemes = {"shared": SharedMemWeightSyncScheme, "private": MultiProcessWeightSyncScheme}
    policy = TensorDictModule(Weighty(megabytes), ["observation"], ["action"])
    learned = TensorDict.from_module(policy).data.clone()
    collector = MultiSyncCollector(
        [partial(make_envs, 1)] * num_workers,
        policy,
        frames_per_batch=8 * num_workers,
        weight_sync_schemes={"policy": schemes[kind]()},
        auto_register_policy_transforms=False,
    )
    batches = iter(collector)
    next(batches)
    change: Any = lambda: [value.add_(1) for value in learned.values(True, True)]  # noqa: E731
    return milliseconds(lambda: collector.update_policy_weights_(learned), change), collector.shutdown
