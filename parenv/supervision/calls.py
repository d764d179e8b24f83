"""Workers that only answer calls, for populations and evaluations. No rollout leaves them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot
from parenv.options import Placing
from parenv.protocol.messages import Layout
from parenv.supervision.launch import inline_placement, local_launch, worker_placement
from parenv.supervision.supervisor import Back, Lost, Product, Supervisor
from parenv.supervision.workers import Workers
from parenv.worker.job import WorkerJob


def start_workers(
    stack: contextlib.ExitStack,
    job: WorkerJob,
    named: Mapping[str, Any],
    memory: SharedMemory,
    *,
    inline: bool,
    placement: Placing = None,
    optimizers: bool = False,
    tell: Callable[[Lost | Back], object] = lambda event: None,
) -> Supervisor:
    """Start workers and wait until all are ready for calls.

    Args:
        stack: Stack that ends the workers when it is closed.
        job: Job of the workers.
        named: Arguments of the user in the job by name.
        memory: Shared memory with the status slots.
        inline: Whether the only worker runs in this process.
        placement: Placement of the workers. Default: this machine.
        optimizers: Whether workers make optimizers of torch.
        tell: Function that receives losses and returns, see :class:`~parenv.supervision.supervisor.Product`.

    Returns:
        Supervisor of the workers.
    """
    with_launch = local_launch(job, named, inline=inline, optimizers=optimizers)
    buffer = memory.map()
    progress = [StatusSlot(buffer, worker) for worker in range(len(job.shares))]
    where = inline_placement(lambda: job) if inline else worker_placement(placement, None, job.options)
    limit = None if inline else job.options.max_memory_bytes
    workers = Workers(where, progress, job.shares, max_memory_bytes=limit)
    launch = with_launch(memory.fd)
    # A worker begins when it gets its layout, whose fields are empty because no rollout leaves the worker.
    layouts = [Layout(0, 0, share, 1, 0, 0, workers.env_ids(i)[0], [], []) for i, share in enumerate(job.shares)]
    product = Product(lambda _: launch, lambda worker: [layouts[worker]], tell, processes=not inline)
    supervisor = Supervisor(workers, job.options, product)
    stack.callback(supervisor.close, job.options.close_timeout_s)
    supervisor.start()
    for worker, layout in enumerate(layouts):
        workers.say(worker, layout)
    return supervisor
