"""How a pool comes to be: memory, workers and versions are made, and the feed that joins them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from parenv.envs.factories import Spaces
from parenv.memory.progress import header_bytes
from parenv.policy.snapshots import module_of
from parenv.pool.arena import Arena
from parenv.pool.configuration import Plan
from parenv.pool.feeds import AsyncFeed, Feed, Slotted, SyncFeed
from parenv.pool.gradients import Accumulator
from parenv.pool.launching import as_job, launch_for, placement_for
from parenv.pool.laying_out import LaidOut, lay_out
from parenv.pool.statistics import Tally
from parenv.pool.versions import Versions
from parenv.protocol.messages import Layout
from parenv.supervision.supervisor import Back, Lost, Product, Supervisor
from parenv.supervision.workers import Workers


class Parts(NamedTuple):
    """What a pool at work consists of."""

    arena: Arena
    versions: Versions
    workers: Workers
    supervisor: Supervisor
    feed: Feed
    accumulator: Accumulator | None
    spaces: Spaces


def opened(plan: Plan, tally: Tally, tell: Callable[[Lost | Back], object]) -> Parts:
    """Start the workers of a pool and wait until all are ready. Where that fails, nothing is left.

    Args:
        plan: checked.
        tally: counts.
        tell: is told of workers that are lost and that are back.
    """
    job = as_job(plan, header_bytes(len(plan.shares)))
    with_launch = launch_for(plan, job)
    per_worker = 1 if plan.mode == "sync" else 1 + plan.prefetch
    with contextlib.ExitStack() as stack:
        stack.callback(plan.recorder.close)
        plan.recorder.begin(plan.about)
        arena = Arena(len(plan.shares), module_of(plan.policy), len(plan.shares) * per_worker + 2)
        stack.callback(arena.close)
        versions = Versions(plan.policy, arena.weights, arena.places, plan.settings)
        placement = placement_for(plan, job, arena.weights_map)
        workers = Workers(placement, arena.progress, plan.shares, plan.first_env_id, plan.first_worker)
        launch, layouts = with_launch(arena.memory.fd), list[Layout]()
        product = Product(lambda _: launch, lambda worker: [layouts[worker]], tell, processes=not plan.inline)
        supervisor = Supervisor(workers, plan.options, product)
        stack.callback(supervisor.close, plan.options.close_timeout_s)
        ready = supervisor.start()
        laid_out = lay_out(plan, workers, arena, ready)
        layouts += laid_out.layouts
        for worker, layout in enumerate(layouts):
            workers.say(worker, layout)
        feed = _feed(plan, laid_out, supervisor, versions, tally)
        stack.pop_all()
    return Parts(arena, versions, workers, supervisor, feed, _accumulator(plan, tally), laid_out.spaces)


def _accumulator(plan: Plan, tally: Tally) -> Accumulator | None:
    if plan.gradient is None or plan.gradient_job is None:
        return None
    return Accumulator(plan.gradient, plan.gradient_job.layout, tally)


def _feed(plan: Plan, laid_out: LaidOut, supervisor: Supervisor, versions: Versions, tally: Tally) -> Feed:
    slotted = Slotted(laid_out.spec, laid_out.slots, laid_out.leases, supervisor, versions, tally)
    if plan.mode == "sync":
        return SyncFeed(slotted)
    drop = plan.on_stale == "drop"
    workers = len(supervisor.workers.shares)
    dispatch = plan.recorder.dispatch(workers, plan.prefetch, plan.max_policy_lag, pace=not drop)
    return AsyncFeed(slotted, dispatch, plan.max_policy_lag if drop else None)
