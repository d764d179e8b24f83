"""Launches of worker processes, and their placements on this machine and on others."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from parenv.crew.crew import Crew, Product
from parenv.crew.events import Event
from parenv.crew.pickling import pickled
from parenv.crew.workers import Workers
from parenv.memory.maps import AnyWeights
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot
from parenv.options import Placing, WorkerOptions
from parenv.placement.base import Launch, SteppingPlacement
from parenv.placement.inline import InlinePlacement
from parenv.platform.base import Handle
from parenv.process.descriptors import make_room, occupy_standard_descriptors
from parenv.protocol.messages import Layout
from parenv.worker.job import EpisodeJob, Job, MemberJob, SessionJob, StepJob, WorkerJob
from parenv.worker.worker import Worker

PRELOAD = (
    "parenv.worker.process",
    *(
        name.partition(":")[0]
        for name in (
            StepJob.prepared_by,
            Job.prepared_by,
            Job.prepared_by_if_named,
            MemberJob.prepared_by,
            EpisodeJob.prepared_by,
            SessionJob.prepared_by,
        )
    ),
    "gymnasium.envs.classic_control",
)
"""Modules that the fork server imports once for all workers. Each worker would need longer to import those of CartPole
than to make the environment."""


def local_launch(
    job: WorkerJob, named: Mapping[str, Any], *, inline: bool = False, torch: bool = False, optimizers: bool = False
) -> Callable[[Handle], Launch]:
    """Pickle a job, and return a function that makes the launch from the handle of the shared memory.

    Args:
        job: Job of the workers.
        named: Arguments of the user in the job by name, without the options.
        inline: Whether the only worker runs in this process, which needs no pickle.
        torch: Whether workers need torch even if the job does not mention it.
        optimizers: Whether workers make optimizers of torch if the job mentions it.

    Raises:
        NotPicklableError: An argument cannot be pickled.
        OSError: This process may not open as many descriptors as the workers need.
    """
    options = job.options
    if inline:
        return lambda memory: Launch(memory, b"", (), {}, options.threads)
    payload = pickled({**named, "workers": options}, job)
    make_room(len(job.shares))
    occupy_standard_descriptors()
    has_torch = _mentions_torch(payload)
    with_torch = ("torch",) if torch or has_torch else ()
    # The first optimizer of a process imports torch._dynamo, which takes seconds, also in a restarted worker.
    with_dynamo = ("torch._dynamo",) if optimizers and has_torch else ()
    on_cpu = {*options.devices, options.rollout_device or "cpu"} == {"cpu"}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if on_cpu else {}
    return lambda memory: Launch(
        memory=memory,
        job=payload,
        preload=(*PRELOAD, *with_torch, *options.preload, *with_dynamo),
        environment={**hidden, **_shared_device(), **options.environment},
        threads=options.threads,
        spawn=options.start_method == "spawn",
        entry=job.entry,
    )


def _mentions_torch(payload: bytes) -> bool:
    """Return whether a job refers to torch or to a module that imports it, which each worker would have to import."""
    if b"torch" in payload or (torch := sys.modules.get("torch")) is None:
        return b"torch" in payload
    # Objects of the script itself are pickled by value.
    modules = [module for name, module in list(sys.modules.items()) if name != "__main__" and name.encode() in payload]
    return any(value is torch for module in modules for value in list(getattr(module, "__dict__", {}).values()))


def _shared_device() -> dict[str, str]:
    """Keep XLA from preallocating most of the GPU in each worker, unless the user has set the variable."""
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    return {} if name in os.environ else {name: "false"}


def worker_placement(placing: Placing, weights: AnyWeights, options: WorkerOptions) -> SteppingPlacement:
    """Return the placement of worker processes on this machine or on hosts.

    This is the only place that imports :mod:`parenv.remote`, and only if hosts are used.

    Args:
        placing: Placement that the user gave.
        weights: Places of the weights of the policies, or ``None``.
        options: Options of the workers.

    Raises:
        ConfigurationError: A key cannot be read, or the address cannot be used.
    """
    if placing is None:
        # Only here, because a program whose environments step in its own process needs neither processes nor ZeroMQ.
        from parenv.placement.local import LocalPlacement

        return LocalPlacement()
    from parenv.remote.placement import remote_placement

    return remote_placement(placing, weights, options)


def inline_placement(load_job: Callable[[], Any]) -> InlinePlacement:
    """Return the placement of the only worker in this process, which gets its job from a function."""
    return InlinePlacement(
        lambda sender, launch, say: Worker(
            sender, SharedMemory(fd=os.dup(launch.memory)), load_job, say, owns_process=False
        )
    )


def start_workers(
    stack: contextlib.ExitStack,
    job: WorkerJob,
    named: Mapping[str, Any],
    memory: SharedMemory,
    *,
    inline: bool,
    placement: Placing = None,
    optimizers: bool = False,
    hear: Callable[[Event], object],
    made: Callable[[Crew], object] = lambda crew: None,
    tray_bytes: Callable[[Any], int] = lambda ready: 0,
) -> Crew:
    """Start workers that only answer calls, for populations, evaluations and sessions, and wait until all are ready.

    Args:
        stack: Stack that ends the workers when it is closed.
        job: Job of the workers.
        named: Arguments of the user in the job by name.
        memory: Shared memory with the status slots.
        inline: Whether the only worker runs in this process.
        placement: Placement of the workers. Default: this machine.
        optimizers: Whether workers make optimizers of torch.
        hear: Function that receives losses and returns, see :class:`~parenv.crew.crew.Product`.
        made: Function that gets the crew before any worker starts.
        tray_bytes: Function of a worker's message that it is ready, which returns the bytes of shared memory that each
            sub-environment needs, see :mod:`parenv.memory.trays`. They follow the status slots.

    Returns:
        Crew of the workers.
    """
    with_launch = local_launch(job, named, inline=inline, optimizers=optimizers)
    buffer = memory.map()
    status = [StatusSlot(buffer, worker) for worker in range(len(job.shares))]
    where = inline_placement(lambda: job) if inline else worker_placement(placement, None, job.options)
    limit = None if inline else job.options.max_memory_bytes
    workers = Workers(where, status, job.shares, max_memory_bytes=limit)
    launch = with_launch(memory.handle)
    crew = Crew(workers, job.options, lambda _: launch, processes=not inline)
    stack.callback(crew.close, job.options.close_timeout_s)
    made(crew)
    offset, size = memory.size, tray_bytes(crew.start()[0])
    if size:
        memory.grow(offset + sum(job.shares) * size)
        memory.reserve(offset, sum(job.shares) * size)
    # A worker begins when it gets its layout. No rollout leaves it, so only trays need a place.
    layouts = [
        Layout(offset if size else 0, size, share, 1, 0, 0, workers.env_ids(i)[0], [], [])
        for i, share in enumerate(job.shares)
    ]
    crew.serve(Product(lambda worker: [layouts[worker]], hear))
    return crew
