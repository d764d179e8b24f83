"""What workers get when they are started, and where they are started."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle

from parenv.memory.maps import WeightsMap
from parenv.memory.shared import SharedMemory
from parenv.placement.base import Launch, Placement
from parenv.placement.inline import InlinePlacement
from parenv.placement.local import LocalPlacement
from parenv.policy.devices import on_device
from parenv.pool.configuration import Plan
from parenv.supervision.launch import hosts_placement, local_launch
from parenv.supervision.pickling import pickled
from parenv.worker.job import Job
from parenv.worker.process import WORKER_ENTRY
from parenv.worker.worker import Worker


def as_job(plan: Plan, weights_offset: int) -> Job:
    """What every worker needs to know."""
    return Job(
        factories=plan.factories,
        policy=on_device(plan.policy, "cpu"),
        postprocess=plan.postprocess,
        options=plan.options,
        rollout_length=plan.rollout_length,
        shares=plan.shares,
        first_worker=plan.first_worker,
        first_env_id=plan.first_env_id,
        num_envs_is_given=plan.num_envs_is_given,
        gradient=plan.gradient_job,
        infos=plan.infos,
        settings=plan.settings,
        seed=plan.seed,
        weights_offset=weights_offset,
    )


def launch_for(plan: Plan, job: Job) -> Callable[[int], Launch]:
    """Pickle the job; a function that makes the launch from the descriptor of the pool's memory.

    Raises:
        NotPicklableError: something of the user's cannot travel.
    """
    if plan.inline:
        return lambda memory_fd: Launch(memory_fd, b"", (), {}, plan.options.threads)
    named = {
        "env_fn": plan.factories,
        "policy": plan.policy,
        "postprocess": plan.postprocess,
        "loss_fn": plan.gradient_job and plan.gradient_job.loss_fn,
        "workers": plan.options,
    }
    return local_launch(WORKER_ENTRY, pickled(named, job), plan.options, torch=plan.postprocess is not None)


def placement_for(plan: Plan, job: Job, weights: WeightsMap | None) -> Placement:
    """In this process, in processes on this machine, or on others.

    Raises:
        ConfigurationError: nobody can listen where hosts are to join.
    """
    if plan.placement is not None:
        return hosts_placement(WORKER_ENTRY, plan.placement, weights, plan.options)
    if not plan.inline:
        return LocalPlacement(WORKER_ENTRY)
    return InlinePlacement(
        lambda sender, launch, say: Worker(
            sender,
            SharedMemory(fd=os.dup(launch.memory_fd)),
            lambda: replace(job, policy=_another(job.policy)),
            say,
            owns_process=False,
        )
    )


def _another(policy: Any) -> Any:
    """A copy that shares no state: pickled and unpickled as for a process, or else copied deeply."""
    try:
        return cloudpickle.loads(cloudpickle.dumps(policy))
    except Exception:
        return copy.deepcopy(policy)
