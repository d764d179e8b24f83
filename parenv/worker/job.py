"""What a worker needs to know, pickled once by the driver and read by every worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self

from gymnasium.vector import AutoresetMode

from parenv.envs.factories import Factories
from parenv.experience.gradient import GradientLayout
from parenv.memory.status_slot import StatusSlot, header_bytes
from parenv.options import WorkerOptions
from parenv.policy.assignment import PolicyOf
from parenv.policy.snapshots import flat_layout, module_of
from parenv.process.spinning import Spinning
from parenv.worker.member import Fitness


@dataclass(frozen=True)
class GradientJob:
    """What a worker that runs backward needs to know.

    Args:
        loss_fn: the user's ``(policy, rollout) -> loss | (loss, metrics)``.
        layout: of the driver's policy.
        max_norm: where a worker's gradient is clipped, or ``None``.
    """

    loss_fn: Callable[[Any, Any], Any]
    layout: GradientLayout
    max_norm: float | None


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """One for all workers of a pool or a vector env, whatever their task.

    Args:
        factories: make the sub-environments.
        options: the user's.
        shares: sub-environments of each worker.
        seed: root of all seeds.
        first_worker: workers of other learners before these.
        first_env_id: sub-environments of other learners before these.
        cores: one for each worker to keep to, or ``None``.
        device: of the worker that has this job.
    """

    factories: Factories
    options: WorkerOptions
    shares: tuple[int, ...]
    seed: int
    first_worker: int = 0
    first_env_id: int = 0
    cores: tuple[int, ...] | None = None
    device: str = "cpu"

    def of_worker(self, worker: int) -> Self:
        """As one of the workers has it."""
        devices = self.options.devices
        return replace(self, device=devices[(self.first_worker + worker) % len(devices)])

    def set_up(self, worker: int, progress: StatusSlot, cleanup: contextlib.ExitStack) -> None:
        """Do what the user wants done before sub-environments are made, and note what is to be done behind them."""
        if self.options.cleanup_fn is not None:
            cleanup.callback(self.options.cleanup_fn, self.first_worker + worker)
        self.factories.register()
        if self.options.setup_fn is not None:
            progress.begin("setup_fn")
            self.options.setup_fn(self.first_worker + worker)

    def env_ids(self, worker: int) -> range:
        """The sub-environments that a worker is to have."""
        first = self.first_env_id + sum(self.shares[:worker])
        return range(first, first + self.shares[worker])


@dataclass(frozen=True, kw_only=True)
class StepJob(WorkerJob):
    """For workers that answer wake-ups.

    Args:
        autoreset_mode: what happens where an episode ends.
        spinning: how long they look for what is rung before they sleep; ``None``: not at all.
    """

    autoreset_mode: AutoresetMode
    spinning: Spinning | None = None


@dataclass(frozen=True, kw_only=True)
class MemberJob(WorkerJob):
    """For workers that have the members of a population learn.

    Args:
        make_member: ``(hyperparameters) -> Member``.
        learn: ``(member, rollout) -> {name: number} | None``.
        fitness: how a member is measured.
        fitness_factories: make the sub-environments for that.
        rollout_length: ``T``.
        every: env steps of a turn, at least.
        first: hyper-parameters to try things out with.
    """

    make_member: Callable[[dict[str, float]], Any]
    learn: Callable[[Any, Any], Any]
    fitness: Fitness
    fitness_factories: Factories
    rollout_length: int
    every: int
    first: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Job(WorkerJob):
    """For workers that collect rollouts.

    Args:
        policy: what the user gave.
        postprocess: ``(policy, rollout) -> {name: array}``, or ``None``.
        rollout_length: ``T``, or :data:`~parenv.memory.layout.WHOLE_EPISODES`.
        num_envs_is_given: whether the user said how many sub-environments there are.
        gradient: how to compute gradients, or ``None`` for experience.
        infos: by name of each info that comes along, its default, or ``None`` where it has none.
        settings: of version 0, beside those that the policy has.
    """

    policy: Any
    postprocess: Callable[[Any, Any], Any] | None
    rollout_length: int
    num_envs_is_given: bool
    gradient: GradientJob | None
    infos: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def gradient_bytes(self) -> int:
        """The flat gradient of each worker; 0 for experience."""
        return self.gradient.layout.nbytes if self.gradient else 0

    @property
    def weights_offset(self) -> int:
        """Where the flat weights begin in shared memory, in bytes."""
        return header_bytes(len(self.shares))


@dataclass(frozen=True, kw_only=True)
class AgentsJob(Job):
    """For workers that collect rollouts of several agents, by policies that are given by name.

    Args:
        policy_of: ``(agent, episode) -> name``, or ``None`` where there is one policy.
        places: versions of each policy that there is room for.
    """

    policy_of: PolicyOf | None
    places: int

    @property
    def weights_offsets(self) -> dict[str, int]:
        """By policy, where its flat weights begin in shared memory, in bytes."""
        modules = map(module_of, self.policy.values())
        sizes = (0 if module is None else self.places * flat_layout(module)[1] for module in modules)
        begins = accumulate(sizes, initial=header_bytes(len(self.shares)))
        return dict(zip(self.policy, begins, strict=False))
