"""What workers get when they are started, and where they are started."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle

from parenv.memory.maps import AnyWeights
from parenv.placement.base import Launch, Placement
from parenv.policy.devices import on_device
from parenv.pool.pool_plan import Plan
from parenv.supervision.launch import inline_placement, local_launch, worker_placement
from parenv.supervision.pickling import pickled


def launch_for(plan: Plan) -> Callable[[int], Launch]:
    """Pickle the job; a function that makes the launch from the descriptor of the pool's memory.

    Raises:
        NotPicklableError: something of the user's cannot travel.
    """
    job = plan.job
    if plan.inline:
        return lambda memory_fd: Launch(memory_fd, b"", (), {}, job.options.threads)
    named = {
        "env_fn": job.factories,
        "policy": job.policy,
        "postprocess": job.postprocess,
        "loss_fn": job.gradient and job.gradient.loss_fn,
        "workers": job.options,
    }
    payload = pickled(named, replace(job, policy=on_device(job.policy, "cpu")))
    needs_torch = job.postprocess is not None or job.options.rollout_device is not None
    return local_launch(payload, job.options, torch=needs_torch)


def placement_for(plan: Plan, weights: AnyWeights) -> Placement:
    """In this process, in processes on this machine, or on others.

    Raises:
        ConfigurationError: nobody can listen where hosts are to join.
    """
    if not plan.inline:
        return worker_placement(plan.placement, weights, plan.job.options)
    policy = on_device(plan.job.policy, "cpu")
    return inline_placement(lambda: replace(plan.job, policy=_another(policy)))


def _another(policy: Any) -> Any:
    """A copy that shares no state: pickled and unpickled as for a process, or else copied deeply."""
    try:
        return cloudpickle.loads(cloudpickle.dumps(policy))
    except Exception:
        return copy.deepcopy(policy)
