"""How a pool comes to be: memory, workers and versions are made, and the rollout queue that joins them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle

from parenv.envs.factories import Spaces
from parenv.memory.maps import AnyWeights, WeightsMap
from parenv.placement.base import Launch, Placement
from parenv.placement.local import LocalPlacement
from parenv.policy.devices import on_device
from parenv.policy.snapshots import modules_of
from parenv.pool.agents_opening import agents_memory, lay_out_agents
from parenv.pool.arena import Arena, weights_places
from parenv.pool.dispatch import Dispatch, Rounds
from parenv.pool.events import Observers
from parenv.pool.laying_out import lay_out
from parenv.pool.loading import Loading
from parenv.pool.policy_versions import PolicyVersions
from parenv.pool.pool_plan import Plan
from parenv.pool.rollout_queue import RolloutQueue
from parenv.pool.statistics import Counters
from parenv.pool.versions import Versions
from parenv.process.user_code import dumps
from parenv.protocol.messages import Layout
from parenv.supervision.launch import inline_placement, local_launch, worker_placement
from parenv.supervision.supervisor import Product, Supervisor
from parenv.supervision.workers import Workers
from parenv.worker.job import AgentsJob, Job

Parts = tuple[contextlib.ExitStack, Arena, Versions | PolicyVersions, Supervisor, RolloutQueue, Spaces]
"""What a pool at work consists of, and first what closes it all."""


def opened(plan: Plan, counters: Counters, observers: Observers) -> Parts:
    """Start the workers of a pool and wait until all are ready. Where that fails, nothing is left.

    Args:
        plan: checked.
        counters: counts.
        observers: are told of workers that are lost and that are back, and closed with the pool.
    """
    job = plan.job
    for_workers = replace(job, policy=on_device(job.policy, "cpu"))
    with_launch = _launch_for(plan, for_workers)
    with contextlib.ExitStack() as stack:
        stack.callback(observers.close)
        plan.recorder.begin(plan.about)
        arena, versions, weights = agents_memory(plan, job) if isinstance(job, AgentsJob) else _memory(plan)
        stack.callback(arena.close)
        placement = _placement_for(plan, for_workers, weights)
        workers = Workers(placement, arena.progress, job.shares, job.first_env_id, job.first_worker)
        launch, layouts = with_launch(arena.memory.fd), list[Layout]()
        product = Product(lambda _: launch, lambda worker: [layouts[worker]], observers.tell, processes=not plan.inline)
        if isinstance(placement, LocalPlacement):
            arena.loading = loading = Loading(arena.memory.map(), len(job.shares), placement)
            launch = replace(launch, descriptors=loading.descriptors)
            product = product._replace(asked=loading.asked)
        supervisor = Supervisor(workers, job.options, product)
        stack.callback(supervisor.close, job.options.close_timeout_s)
        ready = supervisor.start()
        if isinstance(versions, PolicyVersions):
            spaces, arrival_of, room = lay_out_agents(plan, workers, arena, versions, ready)
        else:
            spaces, arrival_of, room = lay_out(plan, workers, arena, ready)
        layouts += room.layouts
        for worker, layout in enumerate(layouts):
            workers.say(worker, layout)
        scheduler = _scheduler(plan, len(workers.shares))
        drop_lag = plan.max_policy_lag if plan.on_stale == "drop" else None
        queue = RolloutQueue(scheduler, arrival_of, room, drop_lag, supervisor, versions, counters)
        return stack.pop_all(), arena, versions, supervisor, queue, spaces


def _memory(plan: Plan) -> tuple[Arena, Versions, WeightsMap | None]:
    job, modules = plan.job, modules_of({"": plan.job.policy})
    places = weights_places(modules.values(), len(job.shares) * plan.credits + 2)
    arena = Arena(len(job.shares), modules, places)
    return arena, Versions(job.policy, arena.writers.get(""), places, job.settings), arena.maps.get("")


def _scheduler(plan: Plan, num_workers: int) -> Dispatch | Rounds:
    if plan.mode == "sync":
        return Rounds(num_workers)
    return plan.recorder.dispatch(num_workers, plan.prefetch, plan.max_policy_lag, pace=plan.on_stale == "pace")


def _launch_for(plan: Plan, job: Job) -> Callable[[int], Launch]:
    named = {
        "env_fn": job.factories,
        "policy": job.policy,
        "postprocess": job.postprocess,
        "loss_fn": job.gradient and job.gradient.loss_fn,
    }
    needs_torch = job.postprocess is not None or job.options.rollout_device is not None
    return local_launch(job, named, inline=plan.inline, torch=needs_torch)


def _placement_for(plan: Plan, job: Job, weights: AnyWeights) -> Placement:
    """In this process, in processes on this machine, or on others.

    Raises:
        ConfigurationError: nobody can listen where hosts are to join.
    """
    if not plan.inline:
        return worker_placement(plan.placement, weights, job.options)
    return inline_placement(lambda: replace(job, policy=_another(job.policy)))


def _another(policy: Any) -> Any:
    """A copy that shares no state: pickled and unpickled as for a process, or else copied deeply."""
    try:
        return cloudpickle.loads(dumps(policy))
    except Exception:
        return copy.deepcopy(policy)
