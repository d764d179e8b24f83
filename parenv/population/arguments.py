"""Arguments of a population, and the plan that is made of them before any process starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import numpy as np

from parenv.argument_checks import at_least, one_of, options_of
from parenv.crew.partition import leave_to_pools, placed_workers
from parenv.envs.entry_point import factories_of
from parenv.envs.factories import Factories
from parenv.envs.seeding import evolution_seed, root_seed
from parenv.errors import ConfigurationError
from parenv.experience.rollout import Rollout
from parenv.options import Mode, Placing, RemotePlacement, WorkerOptions
from parenv.platform.limits import possible_workers
from parenv.policy.devices import check_devices
from parenv.population.selection import Evolve, Range, check_values, checked_ranges
from parenv.process.cores import recommended_num_workers
from parenv.worker.job import MemberJob
from parenv.worker.member import Fitness, Member


@dataclass(frozen=True, kw_only=True)
class PopulationArguments:
    """Unchecked arguments of :class:`~parenv.Population`."""

    env_fn: Any
    make_member: Callable[[dict[str, float]], Member]
    learn: Callable[[Any, Rollout], Mapping[str, Any] | None]
    size: int
    evolve: Evolve
    hyperparameters: Mapping[str, Range]
    num_workers: int | None
    num_envs: int
    rollout_length: int
    fitness: Fitness | None
    initial: Sequence[Mapping[str, float]]
    mode: Mode
    seed: int | None
    workers: WorkerOptions | None
    placement: Placing
    lineage: str | os.PathLike[str] | None


@dataclass(frozen=True)
class PopulationPlan:
    """Checked arguments of a population.

    Args:
        job: Job of the workers.
        inline: Whether the only worker runs in this process.
        evolve: Selection.
        ranges: Ranges of the hyper-parameters.
        first: Hyper-parameters of each member at the start.
        in_order: Whether training rounds count in the order in which they began.
        lineage: Path of the lineage, or ``None``.
        placement: Placement of the workers. ``None``: on this machine.
    """

    job: MemberJob
    inline: bool
    evolve: Evolve
    ranges: dict[str, Range]
    first: list[dict[str, float]]
    in_order: bool
    lineage: str | os.PathLike[str] | None
    placement: Placing

    @property
    def num_local(self) -> int:
        """Number of workers on this machine, which share its memory. They come first."""
        if isinstance(self.placement, RemotePlacement):
            return self.placement.num_local
        return len(self.job.shares) if self.placement is None else 0

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.first)

    @property
    def about(self) -> dict[str, Any]:
        """Description for lineage and checkpoints. A population with the same description can continue a run."""
        return {
            "size": self.size,
            "seed": self.job.seed,
            "evolve": repr(self.evolve),
            "hyperparameters": {name: repr(range_) for name, range_ in self.ranges.items()},
            "num_envs": self.job.shares[0],
            "rollout_length": self.job.rollout_length,
        }


def make_plan(given: PopulationArguments) -> PopulationPlan:
    """Check the arguments of a population, and make its plan.

    Raises:
        ConfigurationError: An argument is wrong.
    """
    given = replace(given, num_workers=possible_workers(given.num_workers))
    size = _size(given.size)
    one_of("mode", given.mode, get_args(Mode))
    _check_callables(given)
    evolve = _evolve(given.evolve, size)
    ranges = checked_ranges(given.hyperparameters)
    seed = root_seed(given.seed)
    first = _first(given.initial, ranges, size, seed)
    return PopulationPlan(
        job=_job(given, evolve, first, seed),
        inline=given.num_workers == 0,
        evolve=evolve,
        ranges=ranges,
        first=first,
        in_order=given.mode == "sync",
        lineage=given.lineage,
        placement=given.placement,
    )


def _size(size: Any) -> int:
    if size == 1:
        raise ConfigurationError("size must be at least 2, got 1. Use an AsyncWorkerPool for a single agent.")
    return at_least("size", size, 2)


def _check_callables(given: PopulationArguments) -> None:
    for name, signature in (("make_member", "(hyperparameters) -> Member"), ("learn", "(member, rollout)")):
        if not callable(getattr(given, name)):
            raise ConfigurationError(f"{name} must be a callable {signature}, got {getattr(given, name)!r}")


def _evolve(evolve: Any, size: int) -> Evolve:
    if not isinstance(evolve, Evolve):
        raise ConfigurationError(f"evolve must be a Tournament(...) or a Generational(...), got {evolve!r}")
    evolve.check_fits(size)
    return evolve


def _first(initial: Any, ranges: dict[str, Range], size: int, seed: int) -> list[dict[str, float]]:
    """Return the first hyper-parameters of all members, drawn for members without given values."""
    given = list(initial)
    if len(given) > size:
        raise ConfigurationError(
            f"initial must have hyper-parameters for at most size={size} members, got {len(given)}"
        )
    found = [check_values(values, ranges, f"initial[{member}]") for member, values in enumerate(given)]
    for member in range(len(found), size):
        generator = np.random.default_rng(evolution_seed(seed, member, 0))
        found.append({name: range_.sample(generator) for name, range_ in ranges.items()})
    return found


def _job(given: PopulationArguments, evolve: Evolve, first: list[dict[str, float]], seed: int) -> MemberJob:
    options = _options(given.workers, given.placement)
    make_factories = partial(_factories, options=options, is_local=given.placement is None)
    factories = make_factories(given.env_fn, "env_fn")
    fitness = options_of("fitness", given.fitness, Fitness)
    num_workers = placed_workers(given.placement, given.num_workers)
    if num_workers is None:
        num_workers = min(recommended_num_workers(), len(first))
    if at_least("num_workers", num_workers, 0) > len(first):
        raise ConfigurationError(
            f"num_workers must be at most size={len(first)}, so that each worker has a member, got {num_workers}"
        )
    return MemberJob(
        factories=factories,
        options=options,
        shares=(at_least("num_envs", given.num_envs, 1),) * max(1, num_workers),
        seed=seed,
        make_member=given.make_member,
        learn=given.learn,
        fitness=fitness,
        fitness_factories=factories if fitness.env_fn is None else make_factories(fitness.env_fn, "Fitness.env_fn"),
        rollout_length=at_least("rollout_length", given.rollout_length, 1),
        every=evolve.every,
        first=first[0],
    )


def _factories(env_fn: Any, name: str, options: WorkerOptions, is_local: bool) -> Factories:
    factories = factories_of(env_fn, options, is_local)
    if factories.count is not None:
        raise ConfigurationError(
            f"{name} must be one factory, because all members use the same kind of environment, got a sequence of "
            f"{factories.count}"
        )
    return factories


_FOR_POOLS = {
    "on_env_error": "a member of a population dies of an exception, and is replaced",
    "step_workers": "the worker of a member steps its sub-environments",
    "rollout_device": "a member learns from rollouts in its own worker",
    "recycle_episodes": "a training round must not depend on the rounds before it in the same worker",
}


def _options(workers: Any, placement: Placing) -> WorkerOptions:
    options = options_of("workers", workers, WorkerOptions)
    leave_to_pools(options, _FOR_POOLS)
    if placement is None:  # A host may have other devices than this machine.
        check_devices(options.devices)
    return options
