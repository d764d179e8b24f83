"""Start of a pool: its memory, workers and versions, and the rollout queue that joins them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from parenv.crew.crew import Crew, Product
from parenv.crew.launch import inline_placement, local_launch, worker_placement
from parenv.crew.workers import Workers
from parenv.envs.factories import Spaces
from parenv.memory.maps import VersionMap
from parenv.memory.pool_signals import RoundSignals
from parenv.placement.base import Launch, Placement
from parenv.placement.inline import InlinePlacement
from parenv.platform.base import Handle
from parenv.policy.assignment import UNNAMED
from parenv.policy.copies import copied_for_worker
from parenv.policy.snapshots import modules_of
from parenv.pool.arrival import arrivals
from parenv.pool.dispatch import Dispatch, Rounds
from parenv.pool.episode_queue import EpisodeQueue
from parenv.pool.episodes_in_progress import EpisodesInProgress
from parenv.pool.events import Observers
from parenv.pool.layout import Arena, lay_out
from parenv.pool.pool_plan import Plan
from parenv.pool.prefetch_choice import FIRST
from parenv.pool.rollout_queue import RolloutQueue
from parenv.pool.statistics import Counters
from parenv.pool.versions import Versions

if TYPE_CHECKING:
    from parenv.placement.local import LocalPlacement
    from parenv.pool.synchronization import Synchronization


class Parts(NamedTuple):
    """Parts of a running pool.

    Args:
        closing: Stack that closes all others.
        arena: Shared memory.
        versions: Versions of the policies.
        synchronization: Synchronization of the workers of this machine, or ``None``.
        crew: Workers.
        queue: Rollouts of the workers.
        spaces: Spaces of a sub-environment.
    """

    closing: contextlib.ExitStack
    arena: Arena
    versions: Versions
    synchronization: Synchronization | None
    crew: Crew
    queue: RolloutQueue
    spaces: Spaces


def opened(plan: Plan, counters: Counters, observers: Observers) -> Parts:
    """Start the workers of a pool and wait until all are ready. If that fails, nothing is left.

    Args:
        plan: Plan of the pool.
        counters: Counters of the pool.
        observers: Observers of lost workers and their successors. They are closed with the pool.
    """
    job, num_workers = plan.job, len(plan.job.shares)
    with_launch = _launch_for(plan)
    with contextlib.ExitStack() as stack:
        stack.callback(observers.close)
        plan.recorder.begin(plan.about)
        arena = Arena(num_workers, modules_of(job.policies), job.places)
        stack.callback(arena.close)
        versions = Versions(job.policies, arena.writers, job.places, job.settings, plan.given.max_frozen, num_workers)
        names = tuple(job.policies) if job.is_named else ()
        placement = _placement_for(plan, VersionMap(names, arena.maps, lambda number: versions.tables[number]))
        limit = None if plan.inline else job.options.max_memory_bytes
        workers = Workers(placement, arena.status, job.shares, job.first_env_id, job.first_worker, limit)
        launch, synchronization = with_launch(arena.memory.handle), None
        if (local := _local(placement)) is not None:
            from parenv.pool.synchronization import Synchronization

            synchronization = Synchronization(arena.memory.map(), num_workers, local)
            stack.callback(synchronization.close)
            launch = replace(launch, handles=synchronization.handles)
        crew = Crew(workers, job.options, lambda _: launch, processes=not plan.inline)
        stack.callback(crew.close, job.options.close_timeout_s)
        spaces, room = lay_out(plan, workers, arena, versions, crew.start())
        begin_round = _rounds(arena.mapping, num_workers, local) if plan.given.mode == "sync" else _no_round
        scheduler = _scheduler(plan, len(workers.shares))
        drop_lag = plan.given.max_policy_lag if plan.given.on_stale == "drop" else None
        in_progress = EpisodesInProgress(sum(workers.shares), workers.first_env_id)
        arrival_of = arrivals(room.spec, versions)
        about = scheduler, arrival_of, room, drop_lag, crew, versions, counters, begin_round, in_progress
        kind = partial(EpisodeQueue, spec=room.spec.groups[0]) if job.in_parts else RolloutQueue
        queue = kind(*about, observers.tell)
        product = Product(lambda worker: [room.layouts[worker]], queue.hear)
        crew.serve(product if synchronization is None else product._replace(asked=synchronization.asked))
        return Parts(stack.pop_all(), arena, versions, synchronization, crew, queue, spaces)


def _no_round(sequence: int) -> None:
    """Begin a round whose commits wake the main process one by one."""


def _local(placement: Placement) -> LocalPlacement | None:
    """Return the placement if its workers are processes of this machine."""
    if isinstance(placement, InlinePlacement):
        return None
    from parenv.placement.local import LocalPlacement

    return placement if isinstance(placement, LocalPlacement) else None


def _rounds(head: Any, num_workers: int, placement: LocalPlacement | None) -> Callable[[int], None]:
    """Return the function that begins a round. On this machine, only the last commit of it wakes the main process."""
    if placement is None:
        return _no_round
    signals = RoundSignals(head)
    signals.open(num_workers)

    def begin(sequence: int) -> None:
        signals.begin(sequence)
        placement.ignore_messages(signals.are_due)

    return begin


def _scheduler(plan: Plan, num_workers: int) -> Dispatch | Rounds:
    if plan.given.mode == "sync":
        return Rounds(num_workers)
    lag = plan.given.max_policy_lag
    if lag is not None and plan.job.keeps is not None:
        lag -= plan.job.keeps  # A row may be by a version that was this much older when its part was requested.
    prefetch = FIRST if plan.chooses_prefetch else plan.prefetch
    return plan.recorder.dispatch(num_workers, prefetch, lag, pace=plan.given.on_stale == "pace")


def _launch_for(plan: Plan) -> Callable[[Handle], Launch]:
    job = plan.job
    named = {
        "env_fn": job.factories,
        "policy": job.policies.sources if job.is_named else job.policies.sources[UNNAMED],
        "postprocess": job.postprocess,
        "loss_fn": job.gradient and job.gradient.loss_fn,
    }
    needs_torch = job.postprocess is not None or job.options.rollout_device is not None
    return local_launch(job, named, inline=plan.inline, torch=needs_torch)


def _placement_for(plan: Plan, weights: VersionMap) -> Placement:
    """Return the placement in this process, in processes on this machine, or on others.

    Raises:
        ConfigurationError: The address for hosts cannot be used.
    """
    if not plan.inline:
        return worker_placement(plan.given.placement, weights, plan.job.options)
    return inline_placement(lambda: replace(plan.job, policies=copied_for_worker(plan.job.policies)))
