"""Starting: from the pickled job to sub-environments that have been reset."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gymnasium.vector import VectorEnv

from parenv.envs.fitting import Fit
from parenv.envs.infos import Found, first_seen
from parenv.envs.make import Stepper, make_envs, make_stepper
from parenv.envs.seeding import RandomState, environment_seed
from parenv.errors import ConfigurationError
from parenv.memory.layout import RolloutSpec
from parenv.memory.spaces import leaves
from parenv.memory.status_slot import StatusSlot
from parenv.policy.policy import as_policy, infos_needed
from parenv.protocol.frames import Sender
from parenv.worker.acting import Actor
from parenv.worker.collecting import reset
from parenv.worker.job import Job, WorkerJob
from parenv.worker.naming import infos_in, not_seen, played
from parenv.worker.probing import probe, probe_postprocess
from parenv.worker.scratch_envs import ScratchEnvs


class StartedEnvs(NamedTuple):
    """A worker whose sub-environments exist and wait in their first observations.

    Args:
        stepper: the sub-environments.
        spec: what a rollout of theirs consists of; what is added by policy, ``postprocess`` and infos is known to
            worker 0 only.
        rows: the first observations, one array or list ``[B, ...]`` per leaf.
        infos: what each reset returned.
        fit: how observations and actions must fit their spaces.
    """

    stepper: Stepper
    spec: RolloutSpec
    rows: Sequence[Any]
    infos: Sequence[Found]
    fit: Fit


def start(
    sender: Sender, job: Job, load_job: Callable[[], Job], progress: StatusSlot, warn: Callable[[str], object]
) -> StartedEnvs:
    """Make and reset the sub-environments, and, in worker 0, find out what a rollout holds."""
    env_ids = job.env_ids(sender.worker)
    first, count = env_ids.start, len(env_ids)
    fit = Fit.of(job.options, warn)
    envs = make_envs(job.factories, env_ids, progress)
    if job.options.on_env_error == "restart_env" and isinstance(envs[0], VectorEnv):
        # A SyncVectorEnv too: its factory cannot make one of its sub-environments.
        raise ConfigurationError(
            'on_env_error="restart_env" needs single sub-environments, but env_fn makes a VectorEnv: use '
            '"restart_worker"'
        )
    stepper = make_stepper(envs, first, progress, fit, job.options.step_threads)
    if job.num_envs_is_given and stepper.num_envs != count:
        raise ConfigurationError(
            f"env_fn makes a VectorEnv of {stepper.num_envs} sub-environments, but worker {sender.worker} is to have "
            f"{count}: leave num_envs out, or give {stepper.num_envs} for each worker"
        )
    if job.gradient is not None and job.rollout_length == 1 and stepper.spends_steps:
        raise ConfigurationError(
            "with a VectorEnv in NEXT_STEP mode a rollout of one row may be resets only, which have no gradient: "
            "use a longer rollout_length"
        )
    first = first if stepper.num_envs == count else (job.first_worker + sender.worker) * stepper.num_envs
    seeds = [environment_seed(job.seed, first + column, sender.generation) for column in range(stepper.num_envs)]
    spec = RolloutSpec(job.rollout_length, leaves(stepper.observation_space), leaves(stepper.action_space))
    rows, infos = reset(stepper, spec.observations, seeds)
    started = StartedEnvs(stepper, spec, rows, infos, fit)
    return started._replace(spec=_probe(load_job, started, progress)) if sender.worker == 0 else started


def prepare_process(seed: int, job: WorkerJob, worker: int) -> None:
    """Settle what belongs to the whole process: memory, core, threads, and random states that begin at a seed."""
    if job.options.max_memory_bytes is not None:
        _limit_memory(job.options.max_memory_bytes)
    if job.cores is not None:
        os.sched_setaffinity(0, {job.cores[worker]})
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(job.options.threads)
        torch.manual_seed(seed)
    RandomState(seed).__enter__()


def _limit_memory(more: int) -> None:
    """Have the kernel refuse allocations beyond what this process has now and so many bytes more (Linux)."""
    import resource

    status = Path("/proc/self/status").read_text()
    kilobytes = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmData:")))
    resource.setrlimit(resource.RLIMIT_DATA, (kilobytes * 1024 + more, resource.RLIM_INFINITY))


def _probe(load_job: Callable[[], Job], started: StartedEnvs, progress: StatusSlot) -> RolloutSpec:
    """What a rollout holds; with another copy of the job, whose policy is thrown away, and another random state."""
    stepper, spec, rows, infos, fit = started
    progress.begin("act")
    with RandomState(0):
        job = load_job()
        actor = Actor(job.policy, spec.observations, spec.actions, job.device, fit=fit)
        actor.settle(job.settings)
        spec = replace(spec, infos=infos_in(job.infos, actor.infos_taken, infos))
        seen = first_seen(spec.infos, infos)
        if absent := infos_needed(as_policy(job.policy)) - seen.keys():
            raise not_seen(sorted(absent), infos)
        extras, carry = probe(actor, spec, stepper.action_space, rows, stepper.num_envs, seen)
        spec = replace(spec, extras=extras, carry=carry)
        if missing := [name for name in job.infos if name not in {info.name for info in spec.infos}]:
            another = ScratchEnvs(job.factories, range(1), progress, fit, 1, stepper.envs)
            more = played(another, actor, spec, missing)
            spec = replace(spec, infos=(*spec.infos, *more))
        if job.postprocess is not None:
            more_extras = probe_postprocess(actor, spec, job.postprocess, rows, stepper.num_envs, seen)
            spec = replace(spec, extras=(*extras, *more_extras))
        return spec
