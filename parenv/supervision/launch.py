"""What worker processes get when they are started, and where those on other machines join."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from parenv.memory.maps import AnyWeights
from parenv.memory.shared import SharedMemory
from parenv.options import Placing, WorkerOptions
from parenv.placement.base import Launch, SteppingPlacement
from parenv.placement.inline import InlinePlacement
from parenv.placement.local import LocalPlacement
from parenv.process.descriptors import make_room, occupy_standard_descriptors
from parenv.supervision.pickling import pickled
from parenv.worker.job import WorkerJob
from parenv.worker.process import WORKER_ENTRY
from parenv.worker.worker import Worker

PRELOAD = (WORKER_ENTRY.partition(":")[0], "gymnasium.envs.classic_control")
"""What is imported once for all workers, beside what they ask for: what each would import for CartPole takes it longer
than to make one."""


def local_launch(
    job: WorkerJob, named: Mapping[str, Any], *, inline: bool = False, torch: bool = False, optimizers: bool = False
) -> Callable[[int], Launch]:
    """Pickle a job; a function that makes the launch from the descriptor of the shared memory, to be made after this.

    Args:
        job: of the workers.
        named: what the user gave that is in it beside the options, by the names of the arguments.
        inline: whether the only worker runs in this process, and needs nothing of all that.
        torch: whether workers need torch even though the job does not mention it.
        optimizers: whether they make optimizers of torch, if it does.

    Raises:
        NotPicklableError: something of the user's cannot travel.
        OSError: this process may not open as many descriptors as the workers need.
    """
    options = job.options
    if inline:
        return lambda memory_fd: Launch(memory_fd, b"", (), {}, options.threads)
    payload = pickled({**named, "workers": options}, job)
    make_room(len(job.shares))
    occupy_standard_descriptors()
    has_torch = _mentions_torch(payload)
    with_torch = ("torch",) if torch or has_torch else ()
    # The first optimizer of a process imports it, which takes seconds; so do workers that are restarted.
    with_dynamo = ("torch._dynamo",) if optimizers and has_torch else ()
    on_cpu = {*options.devices, options.rollout_device or "cpu"} == {"cpu"}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if on_cpu else {}
    return lambda memory_fd: Launch(
        memory_fd=memory_fd,
        job=payload,
        preload=(*PRELOAD, *with_torch, *options.preload, *with_dynamo),
        environment={**hidden, **_shared_device(), **options.environment},
        threads=options.threads,
        spawn=options.start_method == "spawn",
        entry=WORKER_ENTRY,
    )


def _mentions_torch(payload: bytes) -> bool:
    """Whether a job has something of torch, or of a module that imports it, which workers would do one by one."""
    if b"torch" in payload or (torch := sys.modules.get("torch")) is None:
        return b"torch" in payload
    # What is in the script itself travels by value.
    modules = [module for name, module in list(sys.modules.items()) if name != "__main__" and name.encode() in payload]
    return any(value is torch for module in modules for value in list(getattr(module, "__dict__", {}).values()))


def _shared_device() -> dict[str, str]:
    """Unless the user says otherwise, XLA takes what it needs of a GPU, where each worker would take most of it."""
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    return {} if name in os.environ else {name: "false"}


def worker_placement(placing: Placing, weights: AnyWeights, options: WorkerOptions) -> SteppingPlacement:
    """Where worker processes run: on this machine, or where hosts join.

    This is the only way from one machine to many. What that takes is imported when it is wanted.

    Args:
        placing: the user's.
        weights: the policy's, or ``None``.
        options: the user's.

    Raises:
        ConfigurationError: a key cannot be read, or nobody can listen at that address.
    """
    if placing is None:
        return LocalPlacement()
    from parenv.remote.joining import remote_placement

    return remote_placement(placing, weights, options)


def inline_placement(load_job: Callable[[], Any]) -> InlinePlacement:
    """The only worker, in this process, with the job that a function gives it."""
    return InlinePlacement(
        lambda sender, launch, say: Worker(
            sender, SharedMemory(fd=os.dup(launch.memory_fd)), load_job, say, owns_process=False
        )
    )
